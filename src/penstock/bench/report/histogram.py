"""
A log-linear histogram, like an HDR histogram: every value is exact to within 1 %.

Each power of two is cut into 128 equal buckets, so the error is relative: 128 ns and 128 s
have the same relative precision. Counts are exact and sparse, histograms can be added, and
JSON can hold them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, Self

BITS = 7
"""Buckets in each power of two, as a power of two."""


class Histogram:
    """Counts of values, which are whole numbers from 0."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        """Bucket → the number of values in it."""
        self.count = 0
        self.total = 0
        self.minimum = 0
        self.maximum = 0

    def record(self, value: int, count: int = 1) -> None:
        """Count a value, or the same value many times."""
        # The clocks of two processors may differ a little; time does not run backwards.
        value = max(value, 0)
        index = bucket(value)
        self.counts[index] = self.counts.get(index, 0) + count
        self.minimum = min(self.minimum, value) if self.count else value
        self.maximum = max(self.maximum, value)
        self.count += count
        self.total += value * count

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram to this one."""
        if not other.count:
            return
        self.minimum = min(self.minimum, other.minimum) if self.count else other.minimum
        self.maximum = max(self.maximum, other.maximum)
        self.count += other.count
        self.total += other.total
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count

    @property
    def mean(self) -> float:
        """The exact arithmetic mean."""
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> int:
        """Return a value that `percent` of all values do not exceed."""
        return self.percentiles((percent,))[0]

    def percentiles(self, percents: Iterable[float]) -> list[int]:
        """Return the value at each percentage; 100 gives the exact maximum."""
        indexes = sorted(self.counts)
        running = list(accumulate(self.counts[index] for index in indexes))
        return [self._at(percent, indexes, running) for percent in percents]

    def as_json(self) -> dict[str, Any]:
        """Return the histogram for JSON; `from_json` reads it."""
        return {
            "count": self.count,
            "total": self.total,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "buckets": sorted(self.counts.items()),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Return the histogram written by `as_json`."""
        histogram = cls()
        histogram.count = fields["count"]
        histogram.total = fields["total"]
        histogram.minimum = fields["minimum"]
        histogram.maximum = fields["maximum"]
        histogram.counts = {int(index): int(count) for index, count in fields["buckets"]}
        return histogram

    def _at(self, percent: float, indexes: list[int], running: list[int]) -> int:
        if not indexes:
            return 0
        # Nearest rank, counted in thousandths so that 99.9 % of 1000 is 999 and not 1000.
        rank = max(-(-self.count * round(percent * 1000) // 100_000), 1)
        value = highest(indexes[bisect_left(running, rank)])
        return min(max(value, self.minimum), self.maximum)


def bucket(value: int) -> int:
    """Return the bucket of a value."""
    shift = max(value.bit_length() - BITS - 1, 0)
    return (shift << BITS) + (value >> shift)


def highest(index: int) -> int:
    """Return the greatest value of a bucket."""
    shift = max((index >> BITS) - 1, 0)
    return ((index - (shift << BITS) + 1) << shift) - 1
