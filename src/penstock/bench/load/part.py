"""One client of a run: its connection, its clock, and its measurements so far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.bench.report.histogram import Histogram
from penstock.bench.report.result import Sample, Tally
from penstock.bench.scenarios.plan import Plan
from penstock.client import Client

now_ns = time.monotonic_ns
"""The clock of all processes: on Linux and macOS it is the same for the whole machine."""

PATIENCE_S = 3600.0
"""Timeout of a flush: it waits behind everything else, and the parent notices a stall."""


class Part:
    """One client at work."""

    def __init__(
        self,
        plan: Plan,
        url: str,
        index: int,
        *,
        counters: Any,
        slot: int,
        started: Callable[[Part], Awaitable[None]],
    ) -> None:
        self.plan = plan
        self.url = url
        self.index = index
        self.client: Client
        """Set once the client is connected."""
        self.latency_ns = Histogram()
        self.disordered = 0
        self.foreign = 0
        self.error = ""
        self.start_ns = 0
        self.end_ns = 0
        self.messages = 0
        self._counters = counters
        self._slot = slot
        self._started = started

    async def started(self) -> None:
        """Report that this client is ready, and wait until all clients may start."""
        await self._started(self)

    def begin(self) -> None:
        """Start this client's clock, unless it is running."""
        if not self.start_ns:
            self.start_ns = self.end_ns = now_ns()

    def count(self, messages: int) -> None:
        """Count handled messages, for the result and for the progress display."""
        self.messages += messages
        self._counters[self._slot] = self.messages

    def end(self) -> None:
        """Note the time of the last message so far."""
        self.end_ns = now_ns()

    def tally(self) -> Tally:
        """Return the measurements."""
        sample = Sample(self.messages, self.plan.size_bytes, self.start_ns, self.end_ns)
        return Tally(sample, self.latency_ns, self.disordered, self.foreign, self.error)


class Finish:
    """Set when a client has received everything, or never will."""

    def __init__(self, part: Part) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        part.client.connection.watchers.append(self)

    def reach(self) -> None:
        """End the waiting."""
        if not self._future.done():
            self._future.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the waiting with an error."""
        if not self._future.done():
            self._future.set_exception(error)

    async def wait(self) -> None:
        """Return when it is reached; raise if the connection is lost first."""
        await self._future

    def disconnected(self, error: Exception) -> None:
        """Fail: bench clients do not reconnect, so messages in flight are lost."""
        self.fail(error)

    def reconnected(self) -> None:
        """Never happens."""

    def closed(self, error: Exception) -> None:
        """Fail: nothing more will arrive."""
        self.fail(error)
