"""The time of day, by a clock that never goes back."""

from __future__ import annotations

from collections.abc import Callable


class SteadyClock:
    """
    Return the time of day in nanoseconds; if it is set back, continue from the former time.

    Deadlines are kept as times of day, because many of them are on disk. If the clock went
    back an hour, then for an hour nothing would be redelivered, expire or be forgotten. So
    the clock only follows steps forward.
    """

    def __init__(self, wall_ns: Callable[[], int], monotonic_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._offset_ns = wall_ns() - monotonic_ns()

    def now_ns(self) -> int:
        """Return the time."""
        monotonic_ns = self._monotonic_ns()
        offset_ns = self._wall_ns() - monotonic_ns
        if offset_ns > self._offset_ns:
            self._offset_ns = offset_ns
        return monotonic_ns + self._offset_ns
