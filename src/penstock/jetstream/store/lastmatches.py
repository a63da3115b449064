"""
The last message of a pattern, found once, and followed from there.

Two searches run side by side, and the faster one wins: the subjects of a narrow pattern are few,
and the last message of a wide one is near the end. What was found is remembered: the next time only
newer messages need a look.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from penstock.jetstream.store import walk
from penstock.jetstream.store.columns import Matcher
from penstock.jetstream.store.survey import Survey

if TYPE_CHECKING:
    from penstock.jetstream.store.catalog import Catalog

REMEMBERED_MAX = 4096
"""The number of patterns to remember."""
STEPS_ALONE = 4
"""The subjects of a narrow pattern are found in this number of steps."""


class LastMatches:
    """The last messages of patterns in one catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[bytes, tuple[int, int]] = {}
        """By pattern: its last message, 0 without one, and the sequence up to which that holds."""

    def find(self, pattern: bytes) -> Generator[None, None, int]:
        """Return the last sequence that matches now, 0 if none does, giving others their turn."""
        catalog = self._catalog
        found, seen = self._known.pop(pattern, (0, 0))
        if not seen:
            found, seen = yield from self._search(pattern)
        while seen < catalog.last_sequence or (found and catalog.locate(found) is None):
            if seen < catalog.last_sequence:
                last = catalog.last_sequence
                newer = yield from self._newest(pattern, seen + 1, last)
                found, seen = newer or found, last
            else:
                found, seen = yield from self._search(pattern)
        if len(self._known) >= REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        self._known[pattern] = found, seen
        return found

    def _search(self, pattern: bytes) -> Generator[None, None, tuple[int, int]]:
        """Return a last sequence, and the one up to which it is the last."""
        last = self._catalog.last_sequence
        backwards = self._newest(pattern, 1, last)
        with Survey(self._catalog, (pattern,)) as survey:
            for step, _ in enumerate(survey):
                if step >= STEPS_ALONE:
                    try:
                        next(backwards)
                    except StopIteration as end:
                        return end.value, last
                yield
            if survey.is_complete:
                return max(survey.last_sequences(), default=0), self._catalog.last_sequence
        return (yield from backwards), last

    def _newest(self, pattern: bytes, first: int, last: int) -> Generator[None, None, int]:
        matcher = self._catalog.matcher((pattern,)) or Matcher((pattern,))
        return walk.newest(self._catalog, matcher, first, last)
