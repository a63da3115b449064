"""Sequences as ranges: what goes together is written down together."""

from __future__ import annotations

from collections.abc import Iterable


def to_ranges(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Return sequences as ranges, first and last of each, in order."""
    ranges: list[tuple[int, int]] = []
    first = last = -2
    for sequence in sorted(set(sequences)):
        if sequence != last + 1:
            if last >= 0:
                ranges.append((first, last))
            first = sequence
        last = sequence
    return [*ranges, (first, last)] if last >= 0 else ranges
