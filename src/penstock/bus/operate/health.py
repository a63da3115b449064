"""
Heartbeats: does what we publish come back to us?

A heartbeat is a message of this process to itself, through the broker. One that
does not come back in time is a miss; misses in a row make a warning, an error, a
crisis. On NATS others may listen too: a process beats on `heartbeats.<service>.<id>`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from time import monotonic
from typing import Literal, NamedTuple, TypeAlias

from penstock.bus.config.bus import HealthConfig
from penstock.bus.engine import Engine
from penstock.bus.operate.failures import ENDINGS, STOPS
from penstock.errors import PenstockError

logger = logging.getLogger("penstock.bus")

Severity: TypeAlias = Literal["healthy", "warning", "error", "critical"]


class Heartbeat(NamedTuple):
    """The result of the last heartbeats."""

    severity: Severity
    misses: int
    """Heartbeats in a row that did not come back."""
    round_trip_s: float
    """The round trip of the last heartbeat that came back; 0 if none has."""


HealthCallback: TypeAlias = Callable[[Heartbeat], None]


class HealthMonitor:
    """Sends heartbeats, and calls back when the health gets better or worse."""

    def __init__(self, engine: Engine, config: HealthConfig) -> None:
        self._engine = engine
        self._config = config
        self.last = Heartbeat("healthy", 0, 0.0)
        self._callbacks: list[HealthCallback] = []
        self._task: asyncio.Task[None] | None = None

    def on_change(self, callback: HealthCallback) -> HealthCallback:
        """Call `callback` whenever the severity changes. Starts the heartbeats."""
        self._callbacks.append(callback)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._beat_on())
        return callback

    async def beat(self) -> Heartbeat:
        """Send one heartbeat, wait for it, and return the resulting health."""
        started_s = monotonic()
        came_back = await self._round_trip()
        misses = 0 if came_back else self.last.misses + 1
        round_trip_s = monotonic() - started_s if came_back else self.last.round_trip_s
        before, self.last = self.last, Heartbeat(self._judge(misses), misses, round_trip_s)
        if before.severity != self.last.severity:
            self._tell()
        return self.last

    async def close(self) -> None:
        """Stop the heartbeats."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _round_trip(self) -> bool:
        try:
            async with asyncio.timeout(self._config.timeout):
                await self._engine.echo(secrets.token_hex(8).encode())
        except (TimeoutError, PenstockError) as error:
            logger.warning("! a heartbeat did not come back: %s", error or "too late")
            return False
        return True

    def _judge(self, misses: int) -> Severity:
        config = self._config
        if misses >= config.critical_misses:
            return "critical"
        if misses >= config.error_misses:
            return "error"
        return "warning" if misses >= config.warning_misses else "healthy"

    def _tell(self) -> None:
        for callback in self._callbacks:
            try:
                callback(self.last)
            except ENDINGS:
                raise
            except BaseException:
                logger.exception("! a health callback failed")

    async def _beat_on(self) -> None:
        while True:
            try:
                await self.beat()
            except STOPS:
                raise
            except BaseException:
                logger.exception("! a heartbeat failed")
            await asyncio.sleep(self._config.interval)
