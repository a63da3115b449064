"""Pings: a pong proves that everything before its ping arrived, and that the server is alive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.client.connection.outbox import LinkOutbox

PING_LINE = b"PING\r\n"


class Pings:
    """The pings of the current link without a pong yet, oldest first."""

    def __init__(
        self,
        outbox: LinkOutbox,
        *,
        interval_s: float,
        outstanding_max: int,
        stale: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._outbox = outbox
        self._interval_s = interval_s
        self._outstanding_max = outstanding_max
        self._stale = stale
        self._waiting: deque[asyncio.Future[None] | None] = deque()
        self._unanswered = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch a new link."""
        self._unanswered = 0
        self._timer = self._loop.call_later(self._interval_s, self._tick)

    def stop(self, error: Exception) -> None:
        """Fail the pings of a lost link."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            if future is not None and not future.done():
                future.set_exception(error)

    def send(self) -> asyncio.Future[None]:
        """Send a ping after all pending bytes; the future ends with the pong."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        self._outbox.add(PING_LINE)
        return future

    def pong(self) -> None:
        """Handle the server's answer to the oldest ping."""
        self._unanswered = 0
        future = self._waiting.popleft() if self._waiting else None
        if future is not None and not future.done():
            future.set_result(None)

    def _tick(self) -> None:
        if self._unanswered >= self._outstanding_max:
            self._stale()
            return
        self._unanswered += 1
        self._waiting.append(None)
        self._outbox.add(PING_LINE)
        self._timer = self._loop.call_later(self._interval_s, self._tick)
