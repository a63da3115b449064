"""
Keyed lanes: many keys at once, each key one message at a time and in order.

A key always goes to the same lane, and a lane handles one message at a time. When
a handler fails, its key is *parked*: the message is tried again after a while,
later messages of that key wait behind it, and the lane goes on with its other
keys. After the last attempt the message becomes a dead letter and its key reopens,
or the key stays blocked if so configured. So the order of a key survives failures.

Lanes have no tasks of their own. Workers take the lanes that have something to do; a
worker whose handlers never wait clears one lane after another, and another worker is
woken only when a handler waits while there are lanes left. So an empty handler costs
no switch of tasks, and a slow one does not hold up the others.

Nothing is settled before it is done, and the deadline of everything here is put off
together, a few times per ack wait, so waiting is never taken for being lost.

A handler that takes too long is cancelled, and that is a failed attempt. A plain function
runs on a thread, which cannot be cancelled: its key waits until it ends, and its own result
counts. Both kinds are counted and logged when their time is over.

No message is begun once another process may read for the service: while this process was
frozen, the other may have handled this queue. The lanes wait until the lease is confirmed,
or is lost and the queue with it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from math import inf
from time import monotonic

from penstock.bus.config.bus import SubscriberConfig
from penstock.bus.elapsed import elapsed_s
from penstock.bus.engine import Delivery, Engine, IsTaken
from penstock.bus.handlers import RUNNING, NoHandler, Postponed
from penstock.bus.lane import Lane, Parked
from penstock.bus.operate.failures import ENDINGS, describe, runs, trace_of
from penstock.bus.operate.metrics import Metrics
from penstock.errors import BusError, DeadlineExceeded, HandlerTimeout

logger = logging.getLogger("penstock.bus")

TURN_MESSAGES = 128
"""How many messages a lane handles before others get a turn, if no handler waits."""

EXTENSIONS_PER_ACK_WAIT = 3
SUCCESSION_S = 0.05
"""When another worker goes on with a lane whose worker was cancelled; the loop may be ending."""
JITTER = 0.2


class Worker:
    """A task that runs handlers, one at a time."""

    __slots__ = (
        "_may_begin",
        "delivery",
        "is_cancelled",
        "is_late",
        "is_on_thread",
        "lane",
        "started_s",
        "task",
        "wake",
    )

    def __init__(self, may_begin: Callable[[], bool]) -> None:
        self._may_begin = may_begin
        self.task: asyncio.Task[None] | None = None
        self.wake: asyncio.Future[None] | None = None
        self.lane: Lane | None = None
        self.delivery: Delivery | None = None
        self.started_s = 0.0
        self.is_late = False
        """Whether its handler was found to take too long."""
        self.is_cancelled = False
        """Whether the bus cancelled it because its handler took too long."""
        self.is_on_thread = False
        """Whether its handler is a plain function that runs right now."""

    def began(self) -> None:
        """Note that the function begins; until now it waited for a thread. Runs on the thread."""
        if not self._may_begin():
            raise Postponed
        self.started_s = monotonic()
        self.is_on_thread = True

    def ended(self) -> None:
        """Note that the function has ended. Runs on the thread."""
        self.is_on_thread = False


class Lanes:
    """All lanes of a bus, and the messages in them."""

    def __init__(
        self,
        engine: Engine,
        *,
        config: SubscriberConfig,
        ack_wait_s: float,
        bury: Callable[[Delivery], Awaitable[None]],
        metrics: Metrics,
    ) -> None:
        self.on_unhandled: Callable[[Delivery], bool] = self.hold
        """Called with a message whose handler is gone; returns whether it has another now."""
        self.left_behind = 0
        """The number of handlers that did not end when the lanes were closed."""
        self._engine = engine
        self._config = config
        self._bury = bury
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._lanes = [Lane() for _ in range(config.lanes)]
        self._ready: deque[Lane] = deque()
        self._workers: list[Worker] = []
        self._resting: list[Worker] = []
        self._is_calling = False
        """Whether `_call_workers` will run in this turn of the loop."""
        self._called = 1
        self._held: set[Delivery] = set()
        self._aside: set[Delivery] = set()
        """Those of them that wait for a handler."""
        self._done: list[Delivery] = []
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._begin_until_s = inf
        """The time, by `elapsed_s`, until which no other process handles these messages."""
        self._lease_changed = asyncio.Event()
        self._unkeyed = 0
        self._is_finishing = False
        self._is_closed = False
        self._extend_every_s = ack_wait_s / EXTENSIONS_PER_ACK_WAIT
        self._extension = self._loop.call_later(self._extend_every_s, self._extend)
        self._watch: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """How many messages are here: queued, running, parked or held."""
        return len(self._held)

    @property
    def load(self) -> int:
        """How many messages take room: not those that wait for a handler, which may never come."""
        return len(self._held) - len(self._aside)

    @property
    def parked_keys(self) -> dict[str, str]:
        """Keys that wait for another attempt, or are blocked, and the last error of each."""
        return {key: parked.error for lane in self._lanes for key, parked in lane.parked.items()}

    @property
    def is_retrying(self) -> bool:
        """Whether anything waits for another attempt."""
        return any(one.timer is not None for lane in self._lanes for one in lane.parked.values())

    @property
    def blocked(self) -> int:
        """How many messages wait for `reopen`."""
        parked = [one for lane in self._lanes for one in lane.parked.values()]
        return sum(1 + len(one.waiting) for one in parked if one.blocked)

    @property
    def is_busy(self) -> bool:
        """Whether anything is queued or running."""
        return any(lane.is_taken and not lane.is_abandoned for lane in self._lanes)

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
            if not lane.is_taken:
                lane.is_taken = True
                self._ready.append(lane)
        self._call_for_workers()

    def rely_until(self, until_s: float) -> None:
        """Allow messages to be begun until `until_s`, by `elapsed_s`."""
        self._begin_until_s = until_s
        self._lease_changed.set()

    def hold(self, delivery: Delivery) -> bool:
        """Keep a message that has no handler yet."""
        self._held.add(delivery)
        self._aside.add(delivery)
        self._room.set()
        return False

    def release(self, deliveries: Iterable[Delivery]) -> None:
        """Count messages again that have a handler now."""
        self._aside.difference_update(deliveries)

    def reopen(self, key: str) -> bool:
        """Try a parked or blocked key again, now and from its first attempt."""
        lane = self._lanes[hash(key) % len(self._lanes)]
        parked = lane.parked.get(key)
        if parked is None or (parked.timer is None and not parked.blocked):
            return False  # it is being tried right now
        parked.head.attempts = parked.failures = 0
        if parked.timer is not None:
            parked.timer.cancel()
        self._retry(lane, parked)
        return True

    async def room(self, messages_max: int) -> None:
        """Return when fewer than `messages_max` messages take room."""
        while self.load >= messages_max:
            self._room.clear()
            await self._room.wait()

    async def drain(self) -> None:
        """Return when nothing is queued or running. Parked keys stay parked."""
        while self.is_busy:
            self._idle.clear()
            await self._idle.wait()
        self._settle()

    def drop(self, is_taken: IsTaken) -> set[Delivery]:
        """Forget messages that another process takes over; return those that run, and end here."""
        self._settle()
        running = {
            worker.delivery
            for worker in self._workers
            if worker.delivery is not None and is_taken(worker.delivery)
        }
        for delivery in running:
            delivery.is_revoked = True
        kept = {worker.delivery for worker in self._workers if worker.delivery is not None}
        for lane in self._lanes:
            lane.drop(is_taken, kept)
            if lane.queue:
                self._make_ready(lane)
        self._held = {one for one in self._held if one in kept or not is_taken(one)}
        self._aside &= self._held
        self._room.set()
        self._lease_changed.set()
        self._call_for_workers()
        return running

    async def finish(self) -> None:
        """Begin no message that can be given back, and return once nothing runs."""
        self._is_finishing = True
        self._settle()
        running = {worker.delivery for worker in self._workers if worker.delivery is not None}
        owed = set(self._engine.owed(self._held - running))
        for lane in self._lanes:
            lane.empty(owed)
        self._lease_changed.set()  # nothing waits for it any more
        await self.drain()

    async def close(self, *, grace_s: float) -> None:
        """Cancel handlers, wait `grace_s` for their end, and give back unfinished messages."""
        self._is_finishing = self._is_closed = True
        self._extension.cancel()
        if self._watch is not None:
            self._watch.cancel()
        for lane in self._lanes:
            lane.empty()
        running = {one: one.delivery for one in self._workers if one.delivery is not None}
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)
        self._settle()
        left = {delivery for worker, delivery in running.items() if _goes_on(worker)}
        self.left_behind = len(left)
        for delivery in left:
            logger.error(
                "! closing: the handler `%s` of `%s`, key %s, does not end; it is left behind",
                delivery.subscription.name,
                delivery.topic,
                delivery.key,
            )
        # Messages still being handled must not go to another process yet.
        self._engine.give_back(self._held - left)
        self._held.clear()
        self._aside.clear()

    def _call_for_workers(self) -> None:
        if self._ready and not self._is_calling:
            self._is_calling = True
            self._called = 1
            self._call_workers()

    def _call_workers(self) -> None:
        """Wake workers for the ready lanes: one first, then twice as many each time."""
        if not self._ready or self._is_closed:
            self._is_calling = False
            return
        for _ in range(min(self._called, len(self._ready))):
            if self._resting:
                wake = self._resting.pop().wake
                assert wake is not None
                if not wake.done():  # as it is if somebody has cancelled the worker
                    wake.set_result(None)
            elif len(self._workers) < len(self._lanes):
                worker = Worker(self._may_begin)
                self._workers.append(worker)
                worker.task = self._loop.create_task(self._work(worker))
                worker.task.add_done_callback(partial(self._ended, worker))
        self._called *= 2
        # Behind those just woken: if lanes are left by then, every handler is waiting.
        self._loop.call_soon(self._loop.call_soon, self._call_workers)

    async def _work(self, worker: Worker) -> None:
        ready, handled = self._ready, 0
        RUNNING.set(worker)
        while True:
            while ready:
                lane = worker.lane = ready.popleft()
                queue = lane.queue
                while queue:
                    if elapsed_s() >= self._begin_until_s and queue[0].source is not None:
                        self._lease_changed.clear()
                        await self._lease_changed.wait()
                        continue
                    delivery = queue.popleft()
                    if not (lane.parked and lane.is_behind(delivery)):
                        try:
                            await self._handle(worker, lane, delivery)
                        except GeneratorExit:
                            # One from a future that the handler awaits arrives here too.
                            if not runs(worker.task):
                                raise
                    handled += 1
                    if handled % TURN_MESSAGES == 0:
                        await asyncio.sleep(0)
                lane.is_taken = False
                worker.lane = None
            self._idle.set()
            if self._is_closed:
                return  # its handler was left behind, and has ended after all
            worker.wake = self._loop.create_future()
            self._resting.append(worker)
            await worker.wake

    def _ended(self, worker: Worker, task: asyncio.Task[None]) -> None:
        """Record a worker that has ended: the bus closes, the program ends, or it was cancelled."""
        self._workers.remove(worker)
        if worker in self._resting:
            self._resting.remove(worker)
        if task.cancelled() and not self._is_closed:
            self._succeed(worker.lane)
        elif worker.lane is not None:
            # Its message comes again, and those behind it with it.
            worker.lane.is_abandoned = True
        if not task.cancelled():
            task.exception()  # the loop has raised it
        self._idle.set()

    def _succeed(self, lane: Lane | None) -> None:
        """Have another worker go on where one was cancelled."""
        if lane is not None:
            lane.is_taken = False
            if lane.queue:
                self._make_ready(lane)
        self._loop.call_later(SUCCESSION_S, self._call_for_workers)

    def _may_begin(self) -> bool:
        return elapsed_s() < self._begin_until_s

    async def _handle(self, worker: Worker, lane: Lane, delivery: Delivery) -> None:
        worker.delivery = delivery
        worker.started_s = monotonic()
        if self._watch is None:
            self._watch = self._loop.call_later(self._watch_every_s(), self._find_overdue)
        try:
            if delivery.attempts < self._config.max_attempts:
                await delivery.subscription.call(delivery.event)
                self._metrics.handled_total += 1
            else:
                await self._bury(delivery)
                self._metrics.dead_letters_total += 1
        except asyncio.CancelledError:
            self._cancelled(worker, lane, delivery)
        except Postponed:
            if delivery.is_revoked:
                self._return(lane, delivery)
            elif not self._is_finishing:  # else it is given back
                lane.queue.appendleft(delivery)
        except NoHandler:
            if delivery.is_revoked:
                self._return(lane, delivery)
                return
            has_handler = self.on_unhandled(delivery)
            lane.reopen(delivery)
            if has_handler:
                lane.queue.appendleft(delivery)
        except ENDINGS:
            raise  # the program ends, and the message comes again
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not runs(worker.task):
                raise
            self._failed(lane, delivery, error)
        else:
            if not self._done:
                self._loop.call_soon(self._settle)
            self._done.append(delivery)
            if lane.parked:
                lane.reopen(delivery)
        finally:
            worker.delivery = None
            self._metrics.handler_seconds.record(monotonic() - worker.started_s)
            worker.is_late = worker.is_cancelled = False
            # A handler may swallow our cancellation, and a `TaskGroup` leaves its own behind.
            while worker.task.cancelling():  # type: ignore[union-attr]
                worker.task.uncancel()  # type: ignore[union-attr]

    def _cancelled(self, worker: Worker, lane: Lane, delivery: Delivery) -> None:
        """Distinguish the closing of the bus from a handler that is slow or was cancelled."""
        assert worker.task is not None
        if self._is_closed and worker.task.cancelling():
            raise asyncio.CancelledError
        if worker.is_cancelled:
            self._failed(lane, delivery, self._lateness(delivery))
            return
        self._failed(lane, delivery, RuntimeError("the handler was cancelled"))
        if worker.task.cancelling():
            # By itself or from outside: the loop may be ending, and waits for this worker.
            raise asyncio.CancelledError

    def _return(self, lane: Lane, delivery: Delivery) -> None:
        """Give back a message that did not succeed, and that others get now."""
        lane.reopen(delivery)
        self._held.discard(delivery)
        self._room.set()
        self._engine.give_back([delivery])

    def _lateness(self, delivery: Delivery) -> BusError:
        """Return why an attempt that took too long has failed, or storing a dead letter."""
        timeout_s = delivery.subscription.timeout_s
        if delivery.attempts < self._config.max_attempts:
            return HandlerTimeout(f"took longer than {timeout_s} s")
        why = "" if self._engine.connected else ": the broker is away"
        return DeadlineExceeded(f"its dead letter was not stored within {timeout_s} s{why}")

    def _failed(self, lane: Lane, delivery: Delivery, error: BaseException) -> None:
        if delivery.is_revoked:
            logger.warning(
                "! `%s` of %s: %s; another process handles it next",
                delivery.topic,
                delivery.key,
                describe(error),
            )
            self._return(lane, delivery)
            return
        parked = lane.parked.get(delivery.key)
        if parked is None:
            parked = lane.parked[delivery.key] = Parked(delivery)
        parked.error = describe(error)
        parked.failures += 1
        if delivery.attempts == self._config.max_attempts:
            logger.error(
                "! `%s` of %s cannot be made a dead letter: %s",
                delivery.topic,
                delivery.key,
                parked.error,
            )
            self._try_later(lane, parked, self._backoff_s(parked.failures))
            return
        delivery.attempts += 1
        delivery.failures += (parked.error,)
        self._metrics.handler_failures_total += 1
        if delivery.attempts == self._config.max_attempts:
            self._exhausted(lane, parked, error)
            return
        self._log_attempt(logging.WARNING, delivery)
        self._metrics.retries_total += 1
        self._try_later(lane, parked, self._backoff_s(parked.failures))

    def _exhausted(self, lane: Lane, parked: Parked, error: BaseException) -> None:
        """Make a message without attempts left a dead letter, or block its key."""
        delivery = parked.head
        delivery.trace = trace_of(error)
        self._log_attempt(logging.ERROR, delivery, error)
        if self._config.on_exhausted == "block":
            parked.blocked = True
            logger.error("! key %s of `%s` is blocked", delivery.key, delivery.topic)
        else:
            self._try_later(lane, parked, 0.0)

    def _log_attempt(
        self, level: int, delivery: Delivery, error: BaseException | None = None
    ) -> None:
        logger.log(
            level,
            "! `%s` of %s, attempt %d of %d: %s",
            delivery.topic,
            delivery.key,
            delivery.attempts,
            self._config.max_attempts,
            delivery.failures[-1],
            exc_info=error,
        )

    def _try_later(self, lane: Lane, parked: Parked, wait_s: float) -> None:
        if not self._is_finishing:
            parked.timer = self._loop.call_later(wait_s, self._retry, lane, parked)

    def _backoff_s(self, failures: int) -> float:
        config = self._config
        wait_s = config.backoff * config.backoff_factor ** min(failures - 1, 64)
        return min(wait_s, config.max_backoff) * random.uniform(1 - JITTER, 1 + JITTER)

    def _retry(self, lane: Lane, parked: Parked) -> None:
        parked.timer = None
        parked.blocked = False
        lane.queue.appendleft(parked.head)
        self._make_ready(lane)
        self._call_for_workers()

    def _make_ready(self, lane: Lane) -> None:
        if not lane.is_taken:
            lane.is_taken = True
            self._ready.append(lane)

    def _settle(self) -> None:
        done, self._done = self._done, []
        if not done or not self._held:  # the latter: a handler ended after the bus was closed
            return
        self._held.difference_update(done)
        self._engine.settle(done)
        self._room.set()

    def _extend(self) -> None:
        """Put off the deadline of messages that have been here for a while."""
        self._extension = self._loop.call_later(self._extend_every_s, self._extend)
        # Messages that came since the last time can wait for the next.
        aged = [delivery for delivery in self._held if delivery.is_aged]
        for delivery in self._held:
            delivery.is_aged = True
        if aged:
            self._engine.extend(aged)

    def _watch_every_s(self) -> float:
        return min(max(self._config.process_timeout / 10, 0.01), 1.0)

    def _find_overdue(self) -> None:
        """Cancel handlers that take too long: one timer for all of them."""
        now_s, is_busy = monotonic(), False
        for worker in self._workers:
            delivery = worker.delivery
            if delivery is None:
                continue
            is_busy = True
            if now_s - worker.started_s > delivery.subscription.timeout_s and not worker.is_late:
                self._overdue(worker, delivery)
        self._watch = None
        if is_busy:
            self._watch = self._loop.call_later(self._watch_every_s(), self._find_overdue)

    def _overdue(self, worker: Worker, delivery: Delivery) -> None:
        """Count a handler that takes too long, and cancel it if that is possible."""
        subscription = delivery.subscription
        if delivery.attempts == self._config.max_attempts:
            self._cancel(worker)  # it is being made a dead letter
            return
        if not (worker.is_on_thread or subscription.is_cancellable):
            return  # it waits for a thread, and has not begun
        self._metrics.handler_timeouts_total += 1
        logger.warning(
            "! `%s` of %s: the handler `%s` takes longer than %s s; %s",
            delivery.topic,
            delivery.key,
            subscription.name,
            subscription.timeout_s,
            "it is cancelled"
            if subscription.is_cancellable
            else "it runs on a thread, which cannot be cancelled, so its key waits",
        )
        worker.is_late = True
        if subscription.is_cancellable:
            self._cancel(worker)

    def _cancel(self, worker: Worker) -> None:
        assert worker.task is not None
        worker.is_late = worker.is_cancelled = True
        worker.task.cancel()


def _goes_on(worker: Worker) -> bool:
    return worker.is_on_thread or (worker.task is not None and not worker.task.done())
