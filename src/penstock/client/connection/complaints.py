"""
Errors that come unasked, in the log: a server that sends many does not fill a disk.

The first of a kind is written at once. Those of the same kind that follow within a second
are counted, and the count is written with the last of them.
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
        """How many of a kind were not written yet, and the last of them."""

    def log(self, error: Exception) -> None:
        """Write an error, or count it."""
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
