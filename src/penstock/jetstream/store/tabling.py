"""
Another subject table for a new limit per subject, made beside the one in use.

It is made from the messages in order, a portion at a time. Meanwhile messages come and go: below
the point that was reached, both tables count them alike, and what is above comes later. Messages
over the new limit go as the work gets to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from penstock.jetstream.store.subjecttable import new_subject_table

if TYPE_CHECKING:
    from penstock.jetstream.store.block import Block
    from penstock.jetstream.store.catalog import Catalog

TABLED_AT_ONCE = 1024
"""The number of messages to count before others have their turn."""


class Tabling:
    """One table under way, in a `with` block; iterating does the work."""

    def __init__(self, catalog: Catalog, per_subject_max: int) -> None:
        self.table = new_subject_table(per_subject_max)
        self._catalog = catalog
        self._next_sequence = catalog.first_sequence

    def __enter__(self) -> Self:
        self._catalog.tablings.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in self._catalog.tablings:
            self._catalog.tablings.remove(self)

    def __iter__(self) -> Iterator[None]:
        """Count all the messages, giving others their turn in between."""
        while block := self._catalog.reaching(self._next_sequence):
            self._take(block)
            yield

    @property
    def is_complete(self) -> bool:
        """Whether every message is counted."""
        return self._catalog.reaching(self._next_sequence) is None

    def _take(self, block: Block) -> None:
        catalog = self._catalog
        catalog.described(block)
        assert block.places is not None
        assert block.topics is not None
        start = block.position(self._next_sequence)
        stop = min(start + TABLED_AT_ONCE, block.total)
        held, subjects = list(block.held(start, stop)), block.topics.slice(start, stop)
        self._next_sequence = (
            block.sequence(stop) if stop < block.total else block.last_sequence + 1
        )
        if held:
            lengths = block.places.lengths
            evicted = self.table.add(
                block.sequences(held),
                [subjects[position - start] for position in held],
                [lengths[position] for position in held],
            )
            catalog.evict(evicted, self)
            catalog.settle()

    def discard(self, subject: bytes, sequences: list[int]) -> None:
        """Forget messages of one subject that go, in order."""
        counted = [each for each in sequences if each < self._next_sequence]
        if counted:
            self.table.discard(subject, counted)

    def reset(self) -> None:
        """Forget all messages."""
        self.table = new_subject_table(self.table.per_subject_max)


def needed(catalog: Catalog, per_subject_max: int) -> Tabling | None:
    """Return the work that a new limit per subject takes before `retable`, if there is any."""
    old = catalog.subjects.per_subject_max
    is_wider = 0 < old <= per_subject_max
    return None if is_wider or old == per_subject_max else Tabling(catalog, per_subject_max)


def retable(catalog: Catalog, per_subject_max: int) -> None:
    """Use a subject table for a limit per subject, made in turns before or here and now."""
    tabling = _made(catalog, per_subject_max) or needed(catalog, per_subject_max)
    if tabling is None:
        catalog.subjects.per_subject_max = per_subject_max
        return
    if tabling in catalog.tablings:
        catalog.tablings.remove(tabling)
    else:
        with tabling:
            for _ in tabling:
                pass
    for survey in catalog.surveys:
        survey.void()
    catalog.subjects = tabling.table
    catalog.settle()


def _made(catalog: Catalog, per_subject_max: int) -> Tabling | None:
    """Return a table that is ready for a limit."""
    for tabling in catalog.tablings:
        if (
            isinstance(tabling, Tabling)
            and tabling.is_complete
            and tabling.table.per_subject_max == per_subject_max
        ):
            return tabling
    return None
