"""
How long source and sink go on trying when servers are away.

A server restarts, a cluster elects a leader, a network is cut: all of that passes, and a
query that ended for it would have to be started again by hand. So failures that another
attempt may not meet are waited out, by the clock and not by their number, until
`retryTimeoutSeconds` have gone by without a step forward.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import (
    ConnectFailed,
    ConnectionLost,
    JetStreamError,
    NoResponders,
    PenstockError,
    RequestTimeout,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

TRANSIENT = (ConnectFailed, ConnectionLost, RequestTimeout, NoResponders)
"""Failures that another attempt may not meet."""
UNAVAILABLE = 503
WAIT_S, WAIT_S_MAX = 0.2, 5.0


def is_transient(error: PenstockError) -> bool:
    """Tell whether another attempt may not meet this failure."""
    if isinstance(error, JetStreamError):
        # As of a cluster that is about to agree on a leader.
        return error.code == UNAVAILABLE
    return isinstance(error, TRANSIENT)


class Patience:
    """Counts the time since something last went well."""

    def __init__(
        self,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._sleep = sleep
        self._since_s: float | None = None
        self._failures = 0

    def succeeded(self) -> None:
        """Take note of a step forward: the next failure is a first one."""
        self._since_s, self._failures = None, 0

    def wait(self, error: PenstockError) -> None:
        """Return when it is time for another attempt; raise the error if there is to be none."""
        if not is_transient(error):
            raise error
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
            log.warning("%s; trying again for %g s", error, self._limit_s)
        left_s = self._since_s + self._limit_s - now_s
        if left_s <= 0:
            raise error
        self._failures += 1
        self._sleep(min(WAIT_S * self._failures, WAIT_S_MAX, left_s))


def persistently(patience: Patience, attempt: Callable[[], T]) -> T:
    """Return what an attempt returns, once one succeeds."""
    while True:
        try:
            return attempt()
        except PenstockError as error:
            patience.wait(error)
