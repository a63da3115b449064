"""Positions in a stream as a user names them, and ranges of sequences as tasks read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Positions:
    """One position for all streams, or one for each of some."""

    everywhere: Position | None = None
    streams: Mapping[str, Position] = field(default_factory=dict)

    def of(self, stream: str, default: Position) -> Position:
        """Return the position in a stream; the default, if nothing is said of it."""
        return self.streams.get(stream, self.everywhere or default)


def parse_positions(text: str) -> Positions:
    """Read a position, or a JSON object of streams and positions."""
    if not text.strip().startswith("{"):
        return Positions(parse_position(text))
    given = json.loads(text)
    return Positions(None, {name: parse_position(str(each)) for name, each in given.items()})


class Range(NamedTuple):
    """The sequences from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many sequences it covers; deleted ones count too."""
        return max(0, self.last - self.first + 1)


def between(firsts: Sequence[int], last: int) -> list[Range]:
    """Return the ranges that begin at these sequences, the last of which ends at `last`."""
    ends = [*(first - 1 for first in firsts[1:]), last]
    return [Range(first, end) for first, end in zip(firsts, ends, strict=True)]
