"""
Backlog: the messages stored and not yet handled, and callbacks for when there are many.

There is a backlog from the moment one of the two bounds is passed until both are
well below, so that a value which wavers around a bound is not reported each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import time_ns
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from penstock.bus.config.bus import BacklogConfig
from penstock.bus.engine import Engine
from penstock.bus.operate.failures import ENDINGS, STOPS
from penstock.errors import PenstockError

logger = logging.getLogger("penstock.bus")


class Backlog(NamedTuple):
    """The messages the handlers are behind by."""

    messages: int
    age_s: float
    """Age of the oldest message that is not handled."""
    is_high: bool
    unhandled: Mapping[str, int] = MappingProxyType({})
    """Messages that wait for a removed handler, by its pattern; not counted in `messages`."""


BacklogCallback: TypeAlias = Callable[[Backlog], None]


class BacklogMonitor:
    """Looks at the broker now and then, and calls back when the backlog begins or ends."""

    def __init__(self, engine: Engine, config: BacklogConfig) -> None:
        self._engine = engine
        self._config = config
        self._callbacks: list[BacklogCallback] = []
        self._is_high = False
        self._task: asyncio.Task[None] | None = None

    def on_change(self, callback: BacklogCallback) -> BacklogCallback:
        """Call `callback` when a backlog begins and when it ends."""
        self._callbacks.append(callback)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())
        return callback

    async def look(self) -> Backlog:
        """Ask the broker, and call the callbacks if the state has changed."""
        lag = await self._engine.lag()
        age_s = max(0.0, (time_ns() - lag.oldest_ns) / 1e9) if lag.oldest_ns else 0.0
        was_high, self._is_high = self._is_high, self._judge(lag.messages, age_s)
        backlog = Backlog(lag.messages, age_s, self._is_high, lag.unhandled)
        if was_high != self._is_high:
            self._tell(backlog)
        return backlog

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _judge(self, messages: int, age_s: float) -> bool:
        config = self._config
        ratio = config.recover_ratio if self._is_high else 1.0
        return messages > config.max_lag * ratio or age_s > config.max_age * ratio

    def _tell(self, backlog: Backlog) -> None:
        for callback in self._callbacks:
            try:
                callback(backlog)
            except ENDINGS:
                raise
            except BaseException:
                logger.exception("! a backlog callback failed")

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except PenstockError as error:
                logger.info("= the backlog cannot be seen: %s", error)
            except STOPS:
                raise
            except BaseException:
                logger.exception("! looking at the backlog failed")
            await asyncio.sleep(self._config.interval)
