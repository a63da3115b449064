"""An hour of history: a ring for each series, and a bound on their number."""

from __future__ import annotations

from penstock.net.monitor.watch.history import POINTS, STEP_S, History

KEY = ("rate",)


def known(history: History, key: tuple[str, ...] = KEY) -> list[float]:
    return [each for each in history.of(key) if each is not None]


def test_a_series_has_a_place_for_every_step_of_an_hour() -> None:
    history = History()
    for step in range(POINTS + 10):
        history.note(step * STEP_S, {KEY: step})

    assert [float(step) for step in range(10, POINTS + 10)] == history.of(KEY)


def test_what_was_not_seen_is_a_gap() -> None:
    history = History()
    history.note(0, {KEY: 1})
    history.note(3 * STEP_S, {KEY: 4})

    assert [1.0, None, None, 4.0] == history.of(KEY)[-4:]


def test_a_long_silence_leaves_nothing_behind() -> None:
    history = History()
    history.note(0, {KEY: 1})
    history.note(10_000 * STEP_S, {("other",): 2})

    assert [] == known(history)


def test_of_two_looks_in_a_step_the_later_counts() -> None:
    history = History()
    history.note(0.5, {KEY: 1})
    history.note(1.5, {KEY: 2})

    assert [2.0] == known(history)


def test_a_clock_that_goes_back_damages_nothing() -> None:
    history = History()
    history.note(100 * STEP_S, {KEY: 1})
    history.note(50 * STEP_S, {KEY: 2})

    assert [2.0] == known(history)


def test_a_full_history_keeps_what_is_in_use() -> None:
    history = History(series_max=2)
    history.note(0, {("a",): 1, ("b",): 1, ("c",): 1})

    assert 2 == len(history)
    assert [] == known(history, ("c",))


def test_a_full_history_forgets_what_is_gone() -> None:
    history = History(series_max=2)
    history.note(0, {("a",): 1, ("b",): 1})
    for step in range(1, 4):
        history.note(step * STEP_S, {("b",): 1, ("c",): 5})

    assert [5.0, 5.0] == known(history, ("c",))
    assert [] == known(history, ("a",))


def test_what_was_seen_some_time_ago_is_found_also_beside_a_gap() -> None:
    history = History()
    history.note(0, {KEY: 7})
    history.note(100 * STEP_S, {KEY: 9})

    assert 7.0 == history.last(KEY, 100 * STEP_S)
    assert 9.0 == history.last(KEY, 60 * STEP_S)
    assert history.last(("unknown",), 10) is None
    assert 100 * STEP_S == history.oldest_s(KEY)


def test_a_sketch_has_a_mean_for_each_minute() -> None:
    history = History()
    for step in range(36):
        history.note(step * STEP_S, {KEY: step // 12})

    assert [0.0, 1.0, 2.0] == history.sketch(KEY)


def test_a_sketch_of_an_hour_begins_with_what_is_still_known() -> None:
    history = History()
    for step in range(3 * POINTS + 5):
        history.note(step * STEP_S, {KEY: step})

    sketch = history.sketch(KEY)

    assert 60 == len(sketch)
    assert sorted(each or 0 for each in sketch) == sketch
