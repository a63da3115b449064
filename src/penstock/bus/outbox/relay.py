"""
Publishing the events that transactions left in the outbox.

One relay at a time works on a database. It publishes the events of an aggregate
one after another and different aggregates beside each other; one that fails is
tried again after a while, and until then nothing of its aggregate overtakes it.

An event is marked after the broker has stored it. A relay that dies in between
publishes it again when it comes back, and the broker recognises its id within the
duplicate window of the stream. Later than that it is stored twice: use an `Inbox`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import time_ns
from typing import TypeVar

from penstock.bus.bus import EventBus
from penstock.bus.keyed import Failure, in_order_by_key
from penstock.bus.operate.failures import STOPS, describe
from penstock.bus.outbox.store import OutboxStore, Postponement, Row
from penstock.config.setting import Checked, setting
from penstock.protocol.times import DAY_S

logger = logging.getLogger("penstock.bus")

T = TypeVar("T")

ERROR_CHARACTERS_MAX = 500


@dataclass(frozen=True, kw_only=True)
class RelayConfig(Checked):
    """The settings of a relay."""

    rows_max: int = setting(500, "Events read at once.", positive=True)
    poll_s: float = setting(0.2, "Time between two looks at an empty outbox.", positive=True)
    backoff_s: float = setting(0.5, "Wait before the second attempt.", positive=True)
    backoff_s_max: float = setting(60.0, "Longest wait between attempts.", positive=True)
    keep_s: float = setting(DAY_S, "Time published events are kept.", positive=True)
    purge_every_s: float = setting(60.0, "Time between two cleanings.", positive=True)


class Relay:
    """Moves events from a database to an open bus. Use with `async with`."""

    def __init__(
        self, bus: EventBus, store: OutboxStore, config: RelayConfig | None = None
    ) -> None:
        self.published_total = 0
        self.failed_total = 0
        self._bus = bus
        self._store = store
        self._config = config or RelayConfig()
        self._is_open = False
        self._is_closed = False
        self._wake = asyncio.Event()
        self._purged_ns = 0
        self._task: asyncio.Task[None] | None = None
        # One thread, so that the database sees one caller at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-relay")

    async def __aenter__(self) -> Relay:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_active(self) -> bool:
        """Whether this relay is the one that works, and not another process."""
        return self._is_open

    def wake(self) -> None:
        """Look for events now, as after a commit."""
        self._wake.set()

    async def drain(self) -> int:
        """Publish all due events that can be published; return how many."""
        published = 0
        while await self._ensure_open():
            rows = await self._call(self._take)
            if not rows:
                break
            published += await self._publish(rows)
        return published

    async def close(self) -> None:
        """Stop, and let another process be the relay. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._let_go()
        self._thread.shutdown()

    async def _run(self) -> None:
        while True:
            try:
                await self.drain()
                await self._purge()
            except STOPS:
                raise
            except BaseException as error:
                # Whatever the database's driver raises: try again with a new connection.
                logger.warning("! outbox: %s", describe(error))
                await self._start_over()
            await self._wait()

    def _take(self) -> list[Row]:
        return self._store.take(self._config.rows_max, now_ns=time_ns())

    async def _publish(self, rows: list[Row]) -> int:
        done, failures = await in_order_by_key(
            rows,
            key=lambda row: row.aggregate_id,
            act=lambda row: self._bus.publish(
                row.topic, row.body, key=row.aggregate_id, message_id=row.event_id
            ),
        )
        now_ns = time_ns()
        postponed = [self._postponement(failure, now_ns) for failure in failures]
        await self._call(lambda: self._store.mark([row.id for row in done], now_ns=now_ns))
        await self._call(lambda: self._store.postpone(postponed))
        self.published_total += len(done)
        self.failed_total += len(failures)
        return len(done)

    def _postponement(self, failure: Failure, now_ns: int) -> Postponement:
        row, error = failure
        assert isinstance(row, Row)
        logger.warning("! outbox: %s of `%s`: %s", row.event_id, row.topic, error)
        config = self._config
        wait_s = min(config.backoff_s * 2 ** min(row.attempts, 32), config.backoff_s_max)
        text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
        return Postponement(row.id, now_ns + round(wait_s * 1e9), text)

    async def _purge(self) -> None:
        now_ns = time_ns()
        if self._is_open and now_ns - self._purged_ns > self._config.purge_every_s * 1e9:
            before_ns = now_ns - round(self._config.keep_s * 1e9)
            await self._call(lambda: self._store.purge(before_ns=before_ns))
            self._purged_ns = now_ns

    async def _ensure_open(self) -> bool:
        if not self._is_open:
            self._is_open = await self._call(self._store.open)
        return self._is_open

    async def _start_over(self) -> None:
        try:
            await self._let_go()
        except STOPS:
            raise
        except BaseException as error:
            logger.warning("! outbox: closing the database: %s", describe(error))

    async def _let_go(self) -> None:
        self._is_open = False
        await self._call(self._store.close)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._config.poll_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _call(self, function: Callable[[], T]) -> T:
        """Run a blocking call on the thread, to its end even if we are cancelled."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, function)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.gather(future, return_exceptions=True)
            raise
