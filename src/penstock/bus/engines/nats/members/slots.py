"""
Which keys go together, and which member has them.

A key is in one of `SLOTS` slots, for ever and everywhere. Members come and go, and get
slots by the table that `spread` makes: as many as any other, and of those that a member
has as few as possible are taken away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias
from zlib import crc32

SLOTS = 256
"""How many there are: four for each of 64 members. Changing it would reorder what is in flight."""

NOBODY = ""

Table: TypeAlias = dict[str, list[int]]
"""The slots of each member, as they are stored."""


def slot_of(key: str, sequence: int) -> int:
    """Return the slot of a key; a message without a key has one by its sequence."""
    return (crc32(key.encode(errors="surrogatepass")) if key else sequence) % SLOTS


def spread(owners: Sequence[str], members: Collection[str]) -> list[str]:
    """Return who is to have each slot, if these have them now; nobody if there are no members."""
    if not members:
        return [NOBODY] * SLOTS
    counts = Counter(owners)
    share, rest = divmod(SLOTS, len(members))
    # Those that have most already get one more where it does not come out even.
    ranked = sorted(members, key=lambda member: (-counts[member], member))
    left = {member: share + (rank < rest) for rank, member in enumerate(ranked)}
    wanted = list(owners)
    free = []
    for slot, owner in enumerate(owners):
        if left.get(owner, 0):
            left[owner] -= 1
        else:
            free.append(slot)
    takers = (member for member in ranked for _ in range(left[member]))
    for slot, member in zip(free, takers, strict=True):
        wanted[slot] = member
    return wanted


def owners_of(table: Mapping[str, Collection[int]]) -> list[str]:
    """Return who has each slot by a table of members."""
    owners = [NOBODY] * SLOTS
    for member, slots in table.items():
        for slot in slots:
            owners[slot] = member
    return owners


def table_of(owners: Sequence[str], members: Collection[str]) -> Table:
    """Return which slots each of the members has."""
    table: Table = {member: [] for member in members}
    for slot, owner in enumerate(owners):
        if owner in table:
            table[owner].append(slot)
    return table
