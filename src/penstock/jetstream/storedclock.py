"""The time for JetStream: never before what is stored, although the time of day may be."""

from __future__ import annotations

from collections.abc import Callable

from penstock.protocol.times import SECOND_NS

LEAD_NS_MAX = 24 * 3600 * SECOND_NS
"""Stored times further ahead are not followed: whatever has a `max_age` would expire at once."""
SLOWER_BY = 10
"""While it is ahead, the clock is slower than the time of day by a tenth."""


class StoredClock:
    """
    Return the time of day in nanoseconds, or a later one if messages were stored later.

    Deadlines are kept as times of day. If the clock is set back an hour before a start, then for
    an hour nothing would be redelivered, expire or be forgotten. So the time goes on from the
    newest message, and slowly enough for the time of day to catch up: an hour takes ten. Clients
    stand heartbeats and deadlines that are late by a tenth.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        """`clock_ns` returns the time of day, and does not go back."""
        self._clock_ns = clock_ns
        self._lead_ns = 0
        self._began_ns = 0

    def now_ns(self) -> int:
        """Return the time."""
        now_ns = self._clock_ns()
        return now_ns + self._lead_at(now_ns) if self._lead_ns else now_ns

    def reach(self, time_ns: int) -> bool:
        """Go on from a time if that is ahead; return whether the time is reached now."""
        now_ns = self._clock_ns()
        lead_ns = time_ns - now_ns
        if lead_ns > LEAD_NS_MAX:
            return False
        if lead_ns > self._lead_at(now_ns):
            self._lead_ns, self._began_ns = lead_ns, now_ns
        return True

    def _lead_at(self, now_ns: int) -> int:
        lead_ns = self._lead_ns - (now_ns - self._began_ns) // SLOWER_BY
        if lead_ns <= 0:
            self._lead_ns = lead_ns = 0
        return lead_ns
