"""The time of day, by a clock that does not go back."""

from __future__ import annotations

from collections.abc import Callable

from penstock.protocol.times import SECOND_NS


class SteadyClock:
    """
    Return the time of day in nanoseconds; when that is set back, go on from where it was.

    Deadlines are kept as times of day, because much of them is on disk. Were the clock
    to go back an hour, nothing would be redelivered, grow too old or be forgotten for
    an hour. So only steps forward are followed.
    """

    def __init__(self, wall_ns: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        self._wall_ns = wall_ns
        self._monotonic_s = monotonic_s
        self._offset_ns = wall_ns() - round(monotonic_s() * SECOND_NS)

    def __call__(self) -> int:
        """Return the time."""
        monotonic_ns = round(self._monotonic_s() * SECOND_NS)
        offset_ns = self._wall_ns() - monotonic_ns
        if offset_ns > self._offset_ns:
            self._offset_ns = offset_ns
        return monotonic_ns + self._offset_ns
