"""Positions in a stream as a user names them, and ranges of sequences as tasks read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

MILLISECONDS_DIGITS = 12
"""A number so long is a time, in milliseconds since 1970, and no sequence."""


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
    if text.isdecimal() and len(text) >= MILLISECONDS_DIGITS:
        return Position("time", time=datetime.fromtimestamp(int(text) / 1000, UTC))
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
        return between(bounds, self.last)


PARTITION_MESSAGES_MIN = 20_000
"""A task costs some milliseconds, so that fewer messages than this are not split further."""


def partition(
    whole: Range, *, cores: int, min_partitions: int | None, messages_max: int | None
) -> list[Range]:
    """Split a range for parallel reading, by default over the cores; an empty one has no parts."""
    if not whole.size:
        return []
    worthwhile = -(-whole.size // PARTITION_MESSAGES_MIN)
    parts = min_partitions or min(cores, worthwhile)
    if messages_max is not None:
        parts = max(parts, -(-whole.size // messages_max))
    return whole.split(parts)


def between(firsts: Sequence[int], last: int) -> list[Range]:
    """Return the ranges that begin at these sequences, the last of which ends at `last`."""
    ends = [*(first - 1 for first in firsts[1:]), last]
    return [Range(first, end) for first, end in zip(firsts, ends, strict=True)]
