"""Publishing no faster than a rate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from penstock.protocol.tokenbucket import TokenBucket


class RateLimit:
    """Makes its callers wait. A rate of 0 is no limit."""

    def __init__(
        self, rate_per_s: float, *, burst: int, clock_s: Callable[[], float] = monotonic
    ) -> None:
        self.rate_per_s = rate_per_s
        self._bucket = TokenBucket(rate_per_s or 1.0, burst=burst)
        self._clock_s = clock_s

    def wait_s(self) -> float:
        """Reserve a turn for one message; return how long it has to wait."""
        return self._bucket.take(1, self._clock_s())

    async def take(self) -> None:
        """Return when one more message may be sent."""
        if self.rate_per_s:
            wait_s = self.wait_s()
            if wait_s:
                await asyncio.sleep(wait_s)
