"""Which keys go together, and which member has them."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.bus.engines.nats.members.slots import (
    NOBODY,
    SLOTS,
    owners_of,
    slot_of,
    spread,
    table_of,
)


def members(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


def test_every_process_says_the_same_of_a_key() -> None:
    assert [239, 26] == [slot_of(key, 7) for key in ("order-1", "ключ")]


def test_what_has_no_key_is_spread_by_its_sequence() -> None:
    assert [7, 0] == [slot_of("", sequence) for sequence in (7, SLOTS)]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 64])
def test_a_hundred_thousand_keys_are_spread_evenly(count: int) -> None:
    owners = spread([NOBODY] * SLOTS, members(count))
    keys = Counter(owners[slot_of(f"order-{number}", 0)] for number in range(100_000))

    assert set(members(count)) == set(keys)
    assert max(keys.values()) < 1.25 * 100_000 / count


@pytest.mark.parametrize("count", range(1, 65))
def test_all_have_as_many_slots_as_any_other(count: int) -> None:
    shares = Counter(spread([NOBODY] * SLOTS, members(count))).values()

    assert SLOTS == sum(shares)
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("count", range(1, 20))
def test_one_that_joins_gets_its_share_and_nothing_else_moves(count: int) -> None:
    before = spread([NOBODY] * SLOTS, members(count))
    after = spread(before, members(count + 1))
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]

    assert {f"m{count}"} == {new for _, new in moved}
    assert len(moved) == SLOTS // (count + 1)


@pytest.mark.parametrize("count", range(2, 20))
def test_what_one_leaves_goes_to_the_others_and_nothing_else_moves(count: int) -> None:
    before = spread([NOBODY] * SLOTS, members(count))
    after = spread(before, members(count)[1:])

    assert {"m0"} == {old for old, new in zip(before, after, strict=True) if old != new}
    assert "m0" not in after


def test_nobody_is_left_with_what_there_is() -> None:
    assert [NOBODY] * SLOTS == spread(["m0"] * SLOTS, [])


def test_a_table_says_the_same_as_the_owners() -> None:
    owners = spread([NOBODY] * SLOTS, members(3))

    assert owners == owners_of(table_of(owners, members(3)))
    assert {"m0": table_of(owners, members(3))["m0"], "new": []} == table_of(owners, ["m0", "new"])
