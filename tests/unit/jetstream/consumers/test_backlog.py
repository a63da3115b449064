"""The messages that a consumer still has to deliver for the first time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.consumers.backlog import ConsumerBacklog, select_last, start
from penstock.jetstream.store import trail
from penstock.jetstream.store.memory import open_memory_store
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Filters, StoreLimits
from penstock.jetstream.unsafedeletes import UnsafeDeletes

MS = 1_000_000
BASE_NS = 1_700_000_000_000_000_000


@dataclass
class Stream:
    """Only what a backlog asks of a stream."""

    store: Store
    hidden: int = 0
    unsafe_deletes: UnsafeDeletes = field(default_factory=UnsafeDeletes)

    @property
    def visible_sequence(self) -> int:
        return self.store.last_sequence - self.hidden


def stream(*subjects: str, apart_ns: int = MS) -> Stream:
    """Return a stream with a message for each subject."""
    store = open_memory_store()
    fill(store, *subjects, apart_ns=apart_ns)
    return Stream(store)


def fill(store: Store, *subjects: str, apart_ns: int = MS) -> None:
    start_ns = BASE_NS + store.last_sequence * apart_ns
    store.append(
        [(name.encode(), b"", b"x", start_ns + n * apart_ns) for n, name in enumerate(subjects)]
    )


def backlog(
    of: Stream, *filters: bytes, next_sequence: int = 1, is_paced: bool = False
) -> ConsumerBacklog:
    return ConsumerBacklog(of, filters, next_sequence, None, is_paced=is_paced)  # type: ignore[arg-type]


def all_of(rest: ConsumerBacklog, count_max: int = 2) -> list[int]:
    """Take everything; return the sequences."""
    taken: list[int] = []
    while not rest.is_at_end:
        messages = rest.read(count_max, now_ns=0)
        taken += [message[0] for message in messages]
        if messages:
            rest.advance(len(messages))
    return taken


def test_what_was_read_is_there_until_it_is_taken() -> None:
    rest = backlog(stream("a", "a", "a"))

    assert [1, 2] == [message[0] for message in rest.read(2, 0)]
    assert [1, 2] == [message[0] for message in rest.read(2, 0)]
    rest.advance(1)
    assert [2, 3] == [message[0] for message in rest.read(2, 0)]
    assert (2, 2) == (rest.next_sequence, rest.count())


@pytest.mark.parametrize(
    ("filters", "expected"),
    [((), [1, 2, 3, 4]), ((b"b",), [2, 4]), ((b"b", b"c"), [2, 3, 4]), ((b"z",), [])],
)
def test_filters_let_through_what_they_match(filters: Filters, expected: list[int]) -> None:
    rest = backlog(stream("a", "b", "c", "b"), *filters)

    assert len(expected) == rest.count()
    assert expected == all_of(rest)
    assert 0 == rest.count()


def test_nothing_is_read_that_is_not_visible_yet() -> None:
    of = stream("a", "a", "a")
    of.hidden = 2
    rest = backlog(of)

    assert ([1], True) == (all_of(rest), rest.is_at_end)
    of.hidden = 0
    assert [2, 3] == all_of(rest)


def test_the_count_follows_what_comes_and_what_goes() -> None:
    of = stream("a", "b", "a")
    rest, some = backlog(of), backlog(of, b"a")
    assert (3, 2) == (rest.count(), some.count())

    fill(of.store, "a", "b")
    assert (5, 3) == (rest.count(), some.count())
    of.store.remove([1, 2])
    assert (3, 2) == (rest.count(), some.count())


def test_removals_of_what_was_delivered_leave_the_count() -> None:
    of = stream("a", "a", "a")
    rest = backlog(of)
    rest.read(1, 0)
    rest.advance(1)
    before = of.store.removals

    of.store.remove([1])
    rest.overlook(before)

    assert 2 == rest.count()


COUNTS = st.integers(0, 6)
SUBJECTS = st.lists(st.sampled_from(["a", "b", "b.c", "d"]), max_size=30)


@given(st.data(), st.sampled_from([0, 1, 3]), st.sampled_from([1, 5, 50]))
def test_the_count_is_right_whatever_comes_and_goes(
    data: st.DataObject, per_subject: int, noted: int
) -> None:
    limits = StoreLimits(messages_per_subject_max=per_subject, messages_max=data.draw(COUNTS) * 9)
    of = Stream(open_memory_store(limits=limits))
    fill(of.store, *data.draw(SUBJECTS))
    filters = (b"b.>", b"b", b"d")
    plain, last = backlog(of, *filters), backlog(of, *filters)
    last.restart(1, resume_sequence=of.store.last_sequence + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trail, "NOTED_MAX", noted)
        for _ in range(data.draw(st.integers(1, 12))):
            change(of.store, data)
            rest = data.draw(st.sampled_from([plain, last]))
            if data.draw(st.booleans()):
                take(rest, data)
            if data.draw(st.booleans()):
                assert counted_anew(rest, of, filters) == rest.count()
    for rest in (plain, last):
        assert counted_anew(rest, of, filters) == rest.count()
        assert rest.count() >= len(all_of(rest))
        assert 0 == rest.count()


def change(store: Store, data: st.DataObject) -> None:
    """Add or remove some messages, in one of the ways there are."""
    last = store.last_sequence
    match data.draw(st.integers(0, 5)):
        case 0:
            store.remove(data.draw(st.lists(st.integers(1, last + 1), max_size=9)))
        case 1:
            store.purge(data.draw(st.sampled_from([b"b", b"b.*", b">"])), before=last // 2)
        case 2:
            store.skip(1 + data.draw(COUNTS))
        case _:
            fill(store, *data.draw(SUBJECTS))


def take(rest: ConsumerBacklog, data: st.DataObject) -> None:
    messages = rest.read(1 + data.draw(COUNTS), 0)
    if messages:
        if data.draw(st.booleans()):
            rest.count()
        rest.advance(data.draw(st.integers(1, len(messages))))


def counted_anew(rest: ConsumerBacklog, of: Stream, filters: Filters) -> int:
    """Return the count of a backlog that begins where another is."""
    selected = len(rest._selected) if rest._selected is not None else 0
    return selected + of.store.count(rest.uncounted_sequence, filters)


def test_a_removal_between_reading_and_taking_is_counted_once() -> None:
    of = stream("a", "a", "a", "a")
    rest = backlog(of, b"a")
    rest.read(2, 0)

    of.store.remove([1, 3])
    rest.advance(2)

    assert 1 == rest.count()


def test_what_goes_after_it_was_taken_uncounted_is_not_counted() -> None:
    of = stream()
    rest = backlog(of, b"a")
    fill(of.store, "a", "a")
    rest.read(1, 0)
    rest.advance(1)

    of.store.remove([1])

    assert 1 == rest.count()


def test_other_filters_hold_from_the_next_message_on() -> None:
    rest = backlog(stream("a", "b", "a", "b"), b"a")
    rest.read(1, 0)
    rest.advance(1)

    rest.set_filters((b"b",))

    assert 2 == rest.count()
    assert [2, 4] == all_of(rest)


def test_the_last_of_each_subject_come_first_and_then_everything() -> None:
    of = stream("a", "b", "a", "c")
    first, selection = start(ConsumerConfig(deliver_policy="last_per_subject"), of.store, 0)
    rest = ConsumerBacklog(of, (), first, selection)  # type: ignore[arg-type]
    assert (2, 3) == (first, rest.count())

    fill(of.store, "b", "b")

    assert 5 == rest.count()
    assert [2, 3, 4, 5, 6] == all_of(rest)


def test_a_selected_message_that_is_gone_is_left_out() -> None:
    of = stream("a", "b", "c")
    rest = ConsumerBacklog(of, (), 1, select_last((), of.store, after=0, resume_sequence=4))  # type: ignore[arg-type]

    of.store.remove([2])

    assert [1, 3] == all_of(rest)


def test_what_was_taken_back_comes_again_when_it_is_there_again() -> None:
    of = stream("a", "b", "c")
    rest = ConsumerBacklog(of, (), 1, select_last((), of.store, after=0, resume_sequence=4))  # type: ignore[arg-type]
    rest.read(3, 0)

    rest.go_back(2)

    assert [1, 2, 3] == all_of(rest)


def test_a_restart_begins_with_last_messages_and_ends_with_all() -> None:
    of = stream("a", "b", "a", "b", "c")
    rest = backlog(of)
    assert [1, 2, 3, 4, 5] == all_of(rest)

    rest.restart(1, resume_sequence=5)

    assert 3 == rest.count()
    assert [3, 4, 5] == all_of(rest)


def test_a_skip_goes_forward_only() -> None:
    rest = backlog(stream("a", "a", "a"))

    rest.skip_to(3)
    rest.skip_to(2)

    assert [3] == all_of(rest)


def test_a_replay_keeps_the_distances_until_it_has_caught_up() -> None:
    of = stream("a", "a", "a", apart_ns=10 * MS)
    rest = backlog(of, is_paced=True)

    assert [1] == [message[0] for message in rest.read(9, 0)]
    rest.advance(1)
    assert ([], 10 * MS) == (rest.read(9, 0), rest.due_ns)
    assert [2] == [message[0] for message in rest.read(9, 10 * MS)]
    rest.advance(1)
    assert [3] == [message[0] for message in rest.read(9, 20 * MS)]
    rest.advance(1)
    fill(of.store, "a", "a", apart_ns=10 * MS)
    assert [4, 5] == [message[0] for message in rest.read(9, 20 * MS)]
    assert 0 == rest.due_ns


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"deliver_policy": "all"}, 1),
        ({"deliver_policy": "new"}, 5),
        ({"deliver_policy": "last"}, 4),
        ({"deliver_policy": "last", "filter_subject": "b"}, 2),
        ({"deliver_policy": "last", "filter_subject": "z"}, 1),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 3}, 3),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 9}, 9),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2023-11-14T22:13:20.002Z"}, 3),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2024-01-01T00:00:00Z"}, 5),
        ({"deliver_policy": "last_per_subject", "filter_subject": "z"}, 4),
    ],
    ids=repr,
)
def test_the_policy_says_where_a_consumer_begins(options: dict[str, object], expected: int) -> None:
    of = stream("a", "b", "a", "c")

    assert expected == start(ConsumerConfig(**options), of.store, 0)[0]  # type: ignore[arg-type]
