"""
Keep the garbage collector from holding up clients, in a process that is only a server.

A full collection looks at all objects there are: with 300,000 subscriptions that is a fifth of a
second, again and again while they come. Most of what we make is freed without the collector, so
here a full collection looks only at what came since the last one. What survives that is looked
at again when clients are silent, and rarely enough not to matter.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import monotonic
from typing import Any, Self

BUSY_SHARE = 10_000
QUIET_SHARE = 1_000
"""After a look at all objects, the next one waits for this multiple of its duration."""
FIRST_S = 0.005
"""How long a look is taken to be before there was one."""


class Collector:
    """The garbage collector of this process."""

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self._clock_s = clock_s
        self._seen = -1
        self._looked_s, self._took_s = 0.0, FIRST_S

    def __enter__(self) -> Self:
        """Pause: what a start makes stays, so looking at it would only delay the first client."""
        gc.disable()
        return self

    def begin(self) -> None:
        """Take over: from now on, a full collection sets aside what it has looked at."""
        gc.callbacks.append(_set_aside)
        gc.freeze()
        gc.enable()
        self._looked_s = self._clock_s()

    def __exit__(self, *_: object) -> None:
        if _set_aside in gc.callbacks:
            gc.callbacks.remove(_set_aside)
        gc.unfreeze()
        gc.enable()

    def look_at_all_if_quiet(self, traffic: int) -> None:
        """Look at all objects if that is due; it is sooner while `traffic`, a sum, stands still."""
        share = QUIET_SHARE if traffic == self._seen else BUSY_SHARE
        self._seen = traffic
        if self._clock_s() - self._looked_s > share * self._took_s:
            self._look_at_all()

    def _look_at_all(self) -> None:
        start_s = self._clock_s()
        gc.unfreeze()
        gc.collect()
        self._looked_s = self._clock_s()
        self._took_s = self._looked_s - start_s


def _set_aside(phase: str, told: dict[str, Any]) -> None:
    if phase == "stop" and told["generation"] == 2:
        gc.freeze()
