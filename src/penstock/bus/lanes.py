"""
Keyed lanes: many keys at once, each key one message at a time and in order.

A key always goes to the same lane, and a lane handles one message at a time. When
a handler fails, its key is *parked*: the message is tried again after a while,
later messages of that key wait behind it, and the lane goes on with its other
keys. After the last attempt the message becomes a dead letter and its key reopens,
or the key stays blocked if so configured. So the order of a key survives failures.

Nothing is settled before it is done, and the deadline of everything here is put off
together, a few times per ack wait, so waiting is never taken for being lost.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic

from penstock.bus.config import SubscriberConfig
from penstock.bus.engine import Delivery, Engine
from penstock.bus.handlers import NoHandler
from penstock.bus.metrics import Metrics
from penstock.errors import HandlerTimeout

logger = logging.getLogger("penstock.bus")

TURN_MESSAGES = 128
"""How many messages a lane handles before others get a turn, if no handler waits."""

EXTENSIONS_PER_ACK_WAIT = 3
JITTER = 0.2


class Parked:
    """A key whose first message failed."""

    __slots__ = ("blocked", "head", "timer", "waiting")

    def __init__(self, head: Delivery) -> None:
        self.head = head
        self.waiting: deque[Delivery] = deque()
        """Later messages of the key, in order."""
        self.timer: asyncio.TimerHandle | None = None
        self.blocked = False


class Lane:
    """One queue, and the task that works it off."""

    __slots__ = ("current", "is_overdue", "parked", "queue", "started_s", "task", "wake")

    def __init__(self) -> None:
        self.queue: deque[Delivery] = deque()
        self.parked: dict[str, Parked] = {}
        self.task: asyncio.Task[None] | None = None
        self.wake: asyncio.Future[None] | None = None
        self.current: Delivery | None = None
        self.started_s = 0.0
        self.is_overdue = False


class Lanes:
    """All lanes of a bus, and everything that is in them."""

    def __init__(
        self,
        engine: Engine,
        *,
        config: SubscriberConfig,
        ack_wait_s: float,
        bury: Callable[[Delivery], Awaitable[None]],
        metrics: Metrics,
    ) -> None:
        self.on_unhandled: Callable[[Delivery], None] = self.hold
        """Called with a message whose handler is gone."""
        self._engine = engine
        self._config = config
        self._bury = bury
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._lanes = [Lane() for _ in range(config.lanes)]
        self._held: set[Delivery] = set()
        self._done: list[Delivery] = []
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._unkeyed = 0
        self._is_closed = False
        self._extend_every_s = ack_wait_s / EXTENSIONS_PER_ACK_WAIT
        self._extension = self._loop.call_later(self._extend_every_s, self._extend)
        self._watch: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """How many messages are here: queued, running, parked or held."""
        return len(self._held)

    @property
    def parked_keys(self) -> dict[str, str]:
        """Keys that wait for another attempt, or are blocked, and the last error of each."""
        return {
            key: parked.head.failures[-1]
            for lane in self._lanes
            for key, parked in lane.parked.items()
        }

    def put(self, deliveries: Iterable[Delivery]) -> None:
        """Queue messages that have a subscription. Those of a key must come in order."""
        lanes, count, held = self._lanes, len(self._lanes), self._held
        for delivery in deliveries:
            held.add(delivery)
            if delivery.key:
                lane = lanes[hash(delivery.key) % count]
            else:
                self._unkeyed += 1
                lane = lanes[self._unkeyed % count]
                delivery.key = f"#{self._unkeyed}"  # `#` is in no aggregate id
            lane.queue.append(delivery)
            if lane.wake is not None or lane.task is None:
                self._rouse(lane)

    def hold(self, delivery: Delivery) -> None:
        """Keep a message here that nobody can handle yet."""
        self._held.add(delivery)

    def settle(self, delivery: Delivery) -> None:
        """Have a message settled with the others of this turn of the loop."""
        if not self._done:
            self._loop.call_soon(self._settle)
        self._done.append(delivery)

    def reopen(self, key: str) -> bool:
        """Try a parked or blocked key again, now and from its first attempt."""
        lane = self._lanes[hash(key) % len(self._lanes)]
        parked = lane.parked.get(key)
        if parked is None or lane.current is parked.head:
            return False
        parked.head.attempts = 0
        if parked.timer is not None:
            parked.timer.cancel()
        self._retry(lane, parked)
        return True

    async def room(self, messages_max: int) -> None:
        """Return when fewer than `messages_max` messages are here."""
        while len(self._held) >= messages_max:
            self._room.clear()
            await self._room.wait()

    async def drain(self) -> None:
        """Return when nothing is queued or running. Parked keys stay parked."""
        while any(lane.queue or lane.current for lane in self._lanes):
            self._idle.clear()
            await self._idle.wait()
        self._settle()

    async def close(self) -> None:
        """Stop, and give back what is not done."""
        self._is_closed = True
        self._extension.cancel()
        if self._watch is not None:
            self._watch.cancel()
        for lane in self._lanes:
            for parked in lane.parked.values():
                if parked.timer is not None:
                    parked.timer.cancel()
        tasks = [lane.task for lane in self._lanes if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._settle()
        self._engine.give_back(self._held)
        self._held.clear()

    def _rouse(self, lane: Lane) -> None:
        if lane.task is None:
            lane.task = self._loop.create_task(self._work(lane))
        elif lane.wake is not None:
            lane.wake.set_result(None)
            lane.wake = None

    async def _work(self, lane: Lane) -> None:
        queue, handled = lane.queue, 0
        while True:
            while queue:
                delivery = queue.popleft()
                if not (lane.parked and _is_behind(lane, delivery)):
                    await self._handle(lane, delivery)
                handled += 1
                if handled % TURN_MESSAGES == 0:
                    await asyncio.sleep(0)
            self._idle.set()
            lane.wake = wake = self._loop.create_future()
            await wake

    async def _handle(self, lane: Lane, delivery: Delivery) -> None:
        lane.current = delivery
        lane.started_s = monotonic()
        if self._watch is None:
            self._watch = self._loop.call_later(self._watch_every_s(), self._find_overdue)
        try:
            if delivery.attempts < self._config.attempts_max:
                await delivery.subscription.call(delivery.event)
                self._metrics.handled_total += 1
            else:
                await self._bury(delivery)
                self._metrics.dead_letters_total += 1
        except asyncio.CancelledError:
            self._cancelled(lane, delivery)
        except NoHandler:
            self.on_unhandled(delivery)
            self._reopen(lane, delivery)
        except Exception as error:
            self._failed(lane, delivery, error)
        else:
            self.settle(delivery)
            if lane.parked:
                self._reopen(lane, delivery)
        finally:
            lane.current = None
            if lane.is_overdue:
                # The handler swallowed our cancelling, or failed of it.
                lane.is_overdue = False
                lane.task.uncancel()  # type: ignore[union-attr]

    def _cancelled(self, lane: Lane, delivery: Delivery) -> None:
        """Tell our own cancelling of a slow handler from the bus's closing."""
        task = asyncio.current_task()
        assert task is not None
        if lane.is_overdue:
            self._metrics.handler_timeouts_total += 1
            timeout_s = delivery.subscription.timeout_s
            self._failed(lane, delivery, HandlerTimeout(f"took longer than {timeout_s} s"))
        elif task.cancelling():
            raise asyncio.CancelledError
        else:
            self._failed(lane, delivery, RuntimeError("the handler cancelled itself"))

    def _failed(self, lane: Lane, delivery: Delivery, error: Exception) -> None:
        config = self._config
        is_last = delivery.attempts + 1 == config.attempts_max
        if delivery.attempts < config.attempts_max:
            delivery.attempts += 1
            self._metrics.handler_failures_total += 1
        delivery.failures += (f"{type(error).__name__}: {error}",)
        logger.warning(
            "! `%s` of %s, attempt %d: %s",
            delivery.topic,
            delivery.key,
            delivery.attempts,
            delivery.failures[-1],
        )
        parked = lane.parked.get(delivery.key)
        if parked is None:
            parked = lane.parked[delivery.key] = Parked(delivery)
        if is_last and config.on_exhausted == "block":
            parked.blocked = True
            logger.error("! key %s of `%s` is blocked", delivery.key, delivery.topic)
            return
        self._metrics.retries_total += 1
        # A dead letter is made at once; if that fails it is tried again like a handler.
        wait_s = 0.0 if is_last else self._backoff_s(len(delivery.failures))
        parked.timer = self._loop.call_later(wait_s, self._retry, lane, parked)

    def _backoff_s(self, failures: int) -> float:
        config = self._config
        wait_s = config.backoff_s * config.backoff_factor ** min(failures - 1, 64)
        return min(wait_s, config.backoff_s_max) * random.uniform(1 - JITTER, 1 + JITTER)

    def _retry(self, lane: Lane, parked: Parked) -> None:
        parked.timer = None
        parked.blocked = False
        lane.queue.appendleft(parked.head)
        self._rouse(lane)

    def _reopen(self, lane: Lane, delivery: Delivery) -> None:
        """Let the messages that waited behind this one go before any that came later."""
        parked = lane.parked.pop(delivery.key, None)
        if parked is not None:
            lane.queue.extendleft(reversed(parked.waiting))

    def _settle(self) -> None:
        done, self._done = self._done, []
        if not done:
            return
        self._held.difference_update(done)
        self._engine.settle(done)
        self._room.set()

    def _extend(self) -> None:
        """Put off the deadline of all that has been here for a while."""
        self._extension = self._loop.call_later(self._extend_every_s, self._extend)
        # What came since the last time is young enough to wait for the next.
        aged = [delivery for delivery in self._held if delivery.is_aged]
        for delivery in self._held:
            delivery.is_aged = True
        if aged:
            self._engine.extend(aged)

    def _watch_every_s(self) -> float:
        return min(max(self._config.handler_timeout_s / 10, 0.01), 1.0)

    def _find_overdue(self) -> None:
        """Cancel handlers that take too long: one timer for all of them."""
        now_s, is_busy = monotonic(), False
        for lane in self._lanes:
            delivery = lane.current
            if delivery is None:
                continue
            is_busy = True
            timeout_s = delivery.subscription.timeout_s if delivery.subscription else None
            if timeout_s is not None and now_s - lane.started_s > timeout_s:
                if not lane.is_overdue and lane.task is not None:
                    lane.is_overdue = True
                    lane.task.cancel()
        self._watch = None
        if is_busy:
            self._watch = self._loop.call_later(self._watch_every_s(), self._find_overdue)


def _is_behind(lane: Lane, delivery: Delivery) -> bool:
    """Put a message of a parked key behind the one that failed."""
    parked = lane.parked.get(delivery.key)
    if parked is None or parked.head is delivery:
        return False
    parked.waiting.append(delivery)
    return True
