"""
The messages that were removed lately, for those who have counted messages before.

A count of many messages is expensive, and one removal makes it wrong. So whoever has made one asks
for the trail, and takes what is on it out of the count. The trail is short, begins when somebody
asks, and ends when nobody does any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

NOTED_MAX = 16_384
"""The number of messages to remember; whoever has missed more counts again, in turns."""
NOTED_AT_ONCE = 4096
"""The most messages to look at only because they go together."""

Gone: TypeAlias = Sequence[tuple[int, bytes]]
"""Removed messages: sequence, subject."""


class Trail:
    """Removed messages by the number of removals before them, without a gap."""

    def __init__(self) -> None:
        self.is_kept = False
        """Whether somebody wants to know what is removed."""
        self._is_read = False
        self._noted: deque[tuple[int, Gone]] = deque()
        self._end = 0
        """The number of removals after the last one noted."""
        self._size = 0

    def note(self, removals: int, gone: Gone) -> None:
        """Note the last messages of this number of removals."""
        before = removals - len(gone)
        if before != self._end:
            # Some in between were too many, or are not known.
            self._begin(before)
        self._noted.append((before, gone))
        self._size, self._end = self._size + len(gone), removals
        if self._size > NOTED_MAX:
            self._shorten()

    def _shorten(self) -> None:
        """Forget the older half; everything, if nobody has read since the last time."""
        self.is_kept = self._is_read
        kept = NOTED_MAX // 2 if self._is_read else 0
        while self._size > kept:
            self._size -= len(self._noted.popleft()[1])
        self._is_read = False

    def _begin(self, removals: int) -> None:
        self._noted.clear()
        self._size, self._end = 0, removals

    def between(self, before: int, removals: int) -> list[tuple[int, bytes]] | None:
        """
        Return what went between this number of removals, and the number of them by now.

        None if that is not known; what goes from now on will be.
        """
        self.is_kept = self._is_read = True
        if removals != self._end:
            self._begin(removals)
        found: list[tuple[int, bytes]] = []
        reached = removals
        for start, gone in reversed(self._noted):
            if reached <= before:
                break
            found += gone
            reached = start
        return found if reached == before else None
