"""
Log unsolicited errors at a bounded rate, so that a noisy server cannot fill the disk.

The first error of a kind is logged at once. Errors of the same kind within the next second
are counted, and the count is logged with the last of them.
"""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger("penstock.client")

INTERVAL_S = 1.0


class Complaints:
    """The errors of one client."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: dict[type[Exception], tuple[int, Exception | None]] = {}
        """By kind: the number of errors not logged yet, and the last of them."""

    def log(self, error: Exception) -> None:
        """Log an error, or count it."""
        kind = type(error)
        if kind in self._held:
            self._held[kind] = (self._held[kind][0] + 1, error)
            return
        logger.warning("! %s: %s", self._name, error)
        self._wait(kind)

    def _wait(self, kind: type[Exception]) -> None:
        self._held[kind] = (0, None)
        asyncio.get_running_loop().call_later(INTERVAL_S, self._tell, kind)

    def _tell(self, kind: type[Exception]) -> None:
        count, last = self._held.pop(kind)
        if count == 1:
            logger.warning("! %s: %s", self._name, last)
        elif count:
            logger.warning("! %s: %s (and %d more in a second)", self._name, last, count - 1)
        if count:
            self._wait(kind)
