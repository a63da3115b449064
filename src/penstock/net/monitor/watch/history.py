"""
An hour of history in bounded memory.

Every series has the same places, one for each step of time, in a ring: 720 numbers of four bytes.
What was not seen at a step is a gap, not a zero. A full history forgets the series that was
seen least recently; if all are in use, new ones are not kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import isnan, nan

STEP_S = 5
POINTS = 3600 // STEP_S
SERIES_MAX = 1000
"""That makes about 3 MB."""

Key = tuple[str, ...]
EMPTY = array("f", [nan] * POINTS)


class History:
    """The last hour of some figures."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self._series: dict[Key, array[float]] = {}
        """The one seen least recently first."""
        self._seen: dict[Key, int] = {}
        """The last step that each has a number of."""
        self._series_max = series_max
        self.step = -1
        """The last step."""

    def __len__(self) -> int:
        return len(self._series)

    def note(self, time_s: float, figures: Mapping[Key, float]) -> None:
        """Keep what was seen at a time; of two looks in one step, the later counts."""
        step = max(int(time_s // STEP_S), self.step)
        for gone in range(max(self.step + 1, step - POINTS + 1), step + 1):
            for ring in self._series.values():
                ring[gone % POINTS] = nan
        self.step = step
        for key, figure in figures.items():
            found = self._series.pop(key) if key in self._series else self._begin()
            if found is not None:
                self._series[key] = found
                self._seen[key] = step
                found[step % POINTS] = figure

    def _begin(self) -> array[float] | None:
        if len(self._series) >= self._series_max:
            oldest = next(iter(self._series))
            if self._seen[oldest] >= self.step - 1:
                return None
            del self._series[oldest], self._seen[oldest]
        return EMPTY[:]

    def of(self, key: Key) -> list[float | None]:
        """Return a series, the oldest first, with None where nothing is known."""
        ring = self._series.get(key, EMPTY)
        place = (self.step + 1) % POINTS
        return [None if isnan(each) else each for each in (*ring[place:], *ring[:place])]

    def last(self, key: Key, ago_s: float) -> float | None:
        """Return what was seen some time ago, or soon after it; None if nothing was yet."""
        ring = self._series.get(key)
        if ring is None:
            return None
        steps = min(int(ago_s // STEP_S), POINTS - 1)
        places = range(self.step - steps, self.step + 1)
        return next(
            (ring[each % POINTS] for each in places if not isnan(ring[each % POINTS])), None
        )

    def oldest_s(self, key: Key) -> float:
        """Return how long ago the first number of a series was seen; 0 without one."""
        known = [each is not None for each in self.of(key)]
        return (POINTS - 1 - known.index(True)) * STEP_S if True in known else 0.0

    def sketch(self, key: Key, points: int = 60) -> list[float | None]:
        """Return a series in a few points, each the mean of its time, from the first known one."""
        ring = self._series.get(key)
        if ring is None:
            return []
        size = POINTS // points
        end = self.step + 1
        # Parts begin at full minutes, so that only the last one changes.
        starts = range(self.step // size * size - size * (points - 1), end, size)
        parts = [range(max(each, end - POINTS), min(each + size, end)) for each in starts]
        means = [_mean([ring[each % POINTS] for each in part]) for part in parts]
        known = [at for at, mean in enumerate(means) if mean is not None]
        return means[known[0] :] if known else []


def _mean(numbers: list[float]) -> float | None:
    known = [each for each in numbers if not isnan(each)]
    return round(sum(known) / len(known), 1) if known else None
