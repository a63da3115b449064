"""
A token bucket: a rate, and how much may exceed it at once.

It keeps one number, the time at which the bucket would be full again. It does not look at
a clock: `now` comes from the caller, in any unit, and the rate is tokens per that unit.
"""

from __future__ import annotations


class TokenBucket:
    """Tells how long the next tokens have to wait."""

    def __init__(self, rate: float, *, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._full_at = float("-inf")
        """When the bucket would be full again if nobody took any more."""

    def wait(self, tokens: float, now: float) -> float:
        """Return the time until this many tokens can be taken; 0 if they are there."""
        return max(0.0, self._after(tokens, now) - now - self._burst / self._rate)

    def take(self, tokens: float, now: float) -> float:
        """Take tokens, also ones that are not there yet; return how long to wait for them."""
        wait = self.wait(tokens, now)
        self._full_at = self._after(tokens, now)
        return wait

    def _after(self, tokens: float, now: float) -> float:
        return max(self._full_at, now) + tokens / self._rate
