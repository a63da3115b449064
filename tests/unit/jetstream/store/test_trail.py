"""The messages that were removed lately, for those who count."""

from __future__ import annotations

from penstock.jetstream.store.trail import NOTED_MAX, Trail


def asked() -> Trail:
    trail = Trail()
    trail.between(7, 7)
    return trail


def test_it_begins_when_somebody_asks() -> None:
    trail = Trail()

    assert (False, None, True) == (trail.is_kept, trail.between(6, 7), trail.is_kept)
    trail.note(8, [(3, b"a")])
    trail.note(10, [(1, b"b"), (9, b"c")])

    assert [(1, b"b"), (9, b"c"), (3, b"a")] == trail.between(7, 10)
    assert ([(1, b"b"), (9, b"c")], []) == (trail.between(8, 10), trail.between(10, 10))
    assert trail.between(9, 10) is None


def test_a_gap_is_noticed_by_the_next_note_and_by_who_asks() -> None:
    trail = asked()
    trail.note(8, [(3, b"a")])
    trail.note(20, [(5, b"a")])

    assert ([(5, b"a")], None) == (trail.between(19, 20), trail.between(7, 20))
    assert trail.between(19, 21) is None


def test_it_ends_when_nobody_asks_any_more() -> None:
    trail = asked()
    removals = 7
    while trail.is_kept:
        removals += 1
        trail.note(removals, [(removals, b"a")])

    assert NOTED_MAX < removals < 3 * NOTED_MAX
    assert trail.between(removals - 1, removals) is None


def test_the_later_half_stays_as_long_as_somebody_asks() -> None:
    trail = asked()
    for removals in range(8, 8 + 5 * NOTED_MAX):
        trail.note(removals, [(removals, b"a")])
        assert [(removals, b"a")] == trail.between(removals - 1, removals)

    found = trail.between(removals - NOTED_MAX // 2, removals)
    assert found is not None
    assert NOTED_MAX // 2 == len(found)
