"""A token bucket: so many a second, and so many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic


class RateLimit:
    """Makes its callers wait. A rate of 0 is no limit."""

    def __init__(
        self, rate_per_s: float, *, burst: int, clock_s: Callable[[], float] = monotonic
    ) -> None:
        self.rate_per_s = rate_per_s
        self._burst = burst
        self._clock_s = clock_s
        self._next_s = 0.0
        """When the next message would be due, if all came evenly."""

    def wait_s(self) -> float:
        """Take one message's turn; return how long it has to wait."""
        now_s = self._clock_s()
        step_s = 1.0 / self.rate_per_s
        self._next_s = max(self._next_s, now_s - self._burst * step_s) + step_s
        return max(0.0, self._next_s - now_s)

    async def take(self) -> None:
        """Return when one more message may go."""
        if self.rate_per_s:
            wait_s = self.wait_s()
            if wait_s:
                await asyncio.sleep(wait_s)
