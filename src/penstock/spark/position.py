"""Positions in a stream as a user names them, and ranges of sequences as tasks read them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import NamedTuple


class Position(NamedTuple):
    """`earliest`, `latest`, `sequence` with a number, or `time` with a datetime."""

    kind: str
    sequence: int = 0
    time: datetime | None = None


def parse_position(text: str) -> Position:
    """Read a position; a time without a zone is UTC."""
    text = text.strip()
    if text.lower() in ("earliest", "latest"):
        return Position(text.lower())
    if text.isdecimal():
        return Position("sequence", sequence=int(text))
    time = datetime.fromisoformat(text)
    return Position("time", time=time if time.tzinfo else time.replace(tzinfo=UTC))


class Range(NamedTuple):
    """The sequences from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many sequences it covers; deleted ones count too."""
        return max(0, self.last - self.first + 1)

    def split(self, parts: int) -> list[Range]:
        """Return `parts` ranges of nearly equal size, in order."""
        parts = min(parts, self.size)
        bounds = [self.first + self.size * part // parts for part in range(parts)]
        ends = [*(bound - 1 for bound in bounds[1:]), self.last]
        return [Range(first, last) for first, last in zip(bounds, ends, strict=True)]


PARTITION_MESSAGES_MIN = 20_000
"""A task costs some milliseconds, so that fewer messages than this are not split further."""


def partition(whole: Range, *, min_partitions: int | None, messages_max: int | None) -> list[Range]:
    """Split a range for parallel reading, by default over the cores; an empty one has no parts."""
    if not whole.size:
        return []
    worthwhile = -(-whole.size // PARTITION_MESSAGES_MIN)
    parts = min_partitions or min(os.cpu_count() or 1, worthwhile)
    if messages_max is not None:
        parts = max(parts, -(-whole.size // messages_max))
    return whole.split(parts)
