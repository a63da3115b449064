"""
The watcher: surveys the server every few seconds, and every second while somebody looks.

What it saw last is there for everybody: the console, `/healthz?details=1`, `/metrics`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from penstock.net.monitor.turns import Turns
from penstock.net.monitor.watch import attention
from penstock.net.monitor.watch.attention import Finding
from penstock.net.monitor.watch.history import STEP_S
from penstock.net.monitor.watch.reports import Reports
from penstock.net.monitor.watch.survey import Surveyor

log = logging.getLogger("penstock")

LOOKED_AT_S = 1.0
"""The interval while somebody looks."""
SHARE = 20
"""A survey takes at most one part in 20 of the time."""


class Watcher:
    """Keeps the last reports of a server, and what needs attention."""

    def __init__(self, surveyor: Surveyor, turns: Turns) -> None:
        self.reports: Reports | None = None
        """The reports of the last survey; None before the first."""
        self.findings: list[Finding] = []
        self.history = surveyor.history
        self._surveyor = surveyor
        self._turns = turns
        self._viewers = 0
        self._seen = asyncio.Event()
        """Set by the next survey, and then replaced."""
        self._wanted = asyncio.Event()
        """Set when somebody begins to look."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Survey from now on."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @contextmanager
    def viewing(self) -> Iterator[None]:
        """Survey more often in the meantime."""
        self._viewers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._viewers -= 1

    async def next(self) -> Reports:
        """Return the reports of the next survey."""
        await self._seen.wait()
        assert self.reports is not None, "a survey sets them before it wakes anybody"
        return self.reports

    async def look(self) -> None:
        """Survey once."""
        self.reports, self.findings = await self._turns.whole(self._survey())
        seen, self._seen = self._seen, asyncio.Event()
        seen.set()

    def _survey(self) -> Generator[None, None, tuple[Reports, list[Finding]]]:
        reports = yield from self._surveyor.survey()
        found = []
        for rule in attention.RULES:
            found += attention.apply(rule, reports)
            yield
        return reports, found

    async def _run(self) -> None:
        while True:
            began_s = monotonic()
            try:
                await self.look()
            except Exception:
                log.exception("Error in the monitoring of the server")
            took_s = monotonic() - began_s
            await asyncio.sleep(max(LOOKED_AT_S - took_s, took_s * SHARE))
            await self._wait_for_viewer(STEP_S - LOOKED_AT_S)

    async def _wait_for_viewer(self, wait_s: float) -> None:
        """Return at once while somebody looks, else when somebody begins to, or after a while."""
        self._wanted.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self._viewers else wait_s):
                await self._wanted.wait()
