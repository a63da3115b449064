"""
The messages of some filters' subjects, counted a portion at a time.

A new consumer needs the number of its messages, and perhaps the last one of each subject: exactly,
and at one moment. Looking at all the subjects takes longer than others should wait, and meanwhile
messages come and go. So a survey is notified of every changed subject, and looks at it, again if it
had before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Self

from penstock.jetstream.store import walk
from penstock.jetstream.store.values import Filters

if TYPE_CHECKING:
    from penstock.jetstream.store.catalog import Catalog

LOW = 0xFFFF_FFFF


class Survey:
    """One count over the subjects of some filters, in a `with` block; iterating does the work."""

    def __init__(self, catalog: Catalog, filters: Filters) -> None:
        self.filters = filters
        self.messages = 0
        """The number of messages of the subjects seen so far."""
        self.is_complete = False
        self._is_void = False
        self._catalog = catalog
        self._matcher = catalog.matcher(filters)
        self._held: dict[bytes, int] = {}
        """By subject, packed as in the subject table: last sequence, and number of messages."""

    def __enter__(self) -> Self:
        self._catalog.surveys.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._catalog.surveys.remove(self)

    def __iter__(self) -> Iterator[None]:
        """Look at all the subjects, giving others their turn in between."""
        yield from walk.refreshing(self._catalog)
        for rows in self._catalog.subject_portions(self.filters):
            if self._is_void:
                return
            for subject, last, count in rows:
                self._hold(subject, last, count)
            yield
        self.is_complete = not self._is_void

    def last_sequences(self) -> list[int]:
        """Return the last sequence of each subject."""
        for subject in self._catalog.subjects.stale & self._held.keys():
            # One walk, with the first of them, finds the others too.
            self._hold(subject, *self._catalog.last(subject))
        return [packed >> 32 for packed in self._held.values()]

    def changed(self, subjects: Iterable[bytes]) -> None:
        """Look again at subjects whose messages have changed."""
        matcher, last = self._matcher, self._catalog.subjects.last
        for subject in set(subjects):
            if subject in self._held or matcher is None or matcher[subject]:
                self._hold(subject, *last(subject))

    def void(self) -> None:
        """Give up: every subject may have changed."""
        self._is_void, self.is_complete = True, False

    def _hold(self, subject: bytes, last: int, count: int) -> None:
        self.messages += count - (self._held.get(subject, 0) & LOW)
        if count:
            self._held[subject] = last << 32 | count
        else:
            self._held.pop(subject, None)
