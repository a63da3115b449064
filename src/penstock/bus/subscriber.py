"""
Subscribing: one fetcher for everything, handlers by topic, lanes by key.

Messages of a topic that has no handler are held, not dropped: the handler may be
about to be registered. No more of them are fetched until then, so they take no room from
the others, and the log names the topic.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeAlias

import msgspec

from penstock.bus.config.bus import BusConfig
from penstock.bus.engine import Delivery, Engine, IsTaken, Responder
from penstock.bus.events.codec import Codec
from penstock.bus.events.envelope import Envelope
from penstock.bus.events.names import check_apart, check_pattern
from penstock.bus.handlers import (
    Handler,
    Key,
    NoHandler,
    Subscription,
    calling,
    check_handler,
)
from penstock.bus.lanes import Lanes
from penstock.bus.operate.failures import ENDINGS, STOPS, describe, trace_of
from penstock.bus.operate.metrics import Metrics
from penstock.errors import PenstockError

logger = logging.getLogger("penstock.bus")

ROUTES_CACHED_MAX = 4096
RETRY_WAIT_S = 0.1
TOLD_AGAIN_S = 10.0

Wanted: TypeAlias = tuple[str, Handler, dict[str, Any]]
"""A pattern, its handler, and the handler's settings."""


class Subscriber:
    """The reading side of a bus."""

    def __init__(
        self,
        engine: Engine,
        codec: Codec,
        *,
        config: BusConfig,
        metrics: Metrics,
        lanes: Lanes,
    ) -> None:
        self._engine = engine
        self._codec = codec
        self._config = config.subscriber
        self._messages_max = config.max_ack_pending
        self._metrics = metrics
        self._lanes = lanes
        lanes.on_unhandled = self._hand_on
        self.watchers: list[Callable[[Delivery], None]] = []
        """Called with every message that has a handler, before it is queued."""
        self._subscriptions: list[Subscription] = []
        self._routes: dict[str, Subscription | None] = {}
        self._unhandled: dict[str, list[Delivery]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._told = ("", 0.0)
        """The last complaint that was logged, and when."""

    async def subscribe(self, pattern: str, handler: Handler, **settings: Any) -> Subscription:
        """Call `handler` with every message of the topics that match `pattern`."""
        (subscription,) = await self.subscribe_all([(pattern, handler, settings)])
        return subscription

    async def subscribe_all(self, wanted: Iterable[Wanted]) -> list[Subscription]:
        """Subscribe several handlers: all, or none if one of them cannot be subscribed."""
        new = [self._new(pattern, handler, **settings) for pattern, handler, settings in wanted]
        try:
            for subscription in new:
                check_apart(subscription.pattern, (one.pattern for one in self._subscriptions))
                self._subscriptions.append(subscription)
            await self._start(new)
        except BaseException:
            for subscription in new:
                self.unsubscribe(subscription)
            raise
        return new

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop calling a handler. Messages of its topics are held for another."""
        subscription.close()
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            if self._config.unhandled == "hold":
                self._engine.rest(subscription.pattern)
        self._routes.clear()

    @asynccontextmanager
    async def messages(
        self, pattern: str, *, argument: Any = None
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Iterate over messages; asking for the next one settles the last."""
        queue: asyncio.Queue[tuple[Any, asyncio.Future[None]]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def hand_over(event: Any) -> None:
            done: asyncio.Future[None] = loop.create_future()
            queue.put_nowait((event, done))
            await done

        async def iterate() -> AsyncGenerator[Any, None]:
            while True:
                event, done = await queue.get()
                try:
                    yield event
                except GeneratorExit:
                    refuse(done)
                    raise
                if not done.done():
                    done.set_result(None)

        def refuse(done: asyncio.Future[None]) -> None:
            if not done.done():  # as it is if the bus was closed meanwhile
                done.set_exception(NoHandler())

        subscription = await self.subscribe(
            pattern, hand_over, argument=argument or Envelope, timeout_s=math.inf
        )
        iterator = iterate()
        try:
            yield iterator
        finally:
            await iterator.aclose()
            self.unsubscribe(subscription)
            while not queue.empty():
                refuse(queue.get_nowait()[1])

    def answering(self, handler: Callable[[Any], Any]) -> Responder:
        """Return a responder that calls a handler; a plain function runs on a thread."""
        check_handler(handler)

        async def answer(payload: bytes, _: Any) -> bytes:
            return msgspec.json.encode(await called(msgspec.json.decode(payload)))

        called = calling(handler, self._thread_pool)
        return answer

    def drop(self, is_taken: IsTaken) -> Collection[Delivery]:
        """Drop messages that other processes take over; return those that run."""
        for topic, deliveries in list(self._unhandled.items()):
            self._unhandled[topic] = [one for one in deliveries if not is_taken(one)]
        return self._lanes.drop(is_taken)

    def key_of(self, delivery: Delivery) -> str:
        """Return the ordering key of a message; empty if it has none or is unreadable."""
        subscription = self._routes.get(delivery.topic) or self._route(delivery.topic)
        if subscription is None:
            return ""
        try:
            return subscription.key_of(delivery, self._codec)
        except ENDINGS:
            raise
        except BaseException:
            return ""  # the member that gets it makes it a dead letter

    async def stop_fetching(self) -> None:
        """Ask for no more messages."""
        for subscription in self._subscriptions:
            subscription.stop_live()
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
            self._fetching = None

    def close(self) -> None:
        """Release the threads."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _fetch(self) -> None:
        """Fetch forever: one fetch at a time, and none while too many messages are here."""
        while True:
            try:
                await self._lanes.room(self._messages_max)
                deliveries = await self._engine.fetch(self._messages_max - self._lanes.load)
                self._metrics.received_total += len(deliveries)
                self._dispatch(deliveries)
            except PenstockError as error:
                self._complain(str(error))
                await asyncio.sleep(RETRY_WAIT_S)
            except STOPS:
                raise
            except BaseException:
                logger.exception("! fetching failed in a way nobody thought of")
                await asyncio.sleep(RETRY_WAIT_S)

    def _complain(self, text: str) -> None:
        """Log why nothing can be fetched; repeat a lasting reason only now and then."""
        told, told_s = self._told
        if text != told or monotonic() - told_s > TOLD_AGAIN_S:
            logger.warning("! fetching: %s", text)
            self._told = text, monotonic()

    def _dispatch(self, deliveries: list[Delivery]) -> None:
        ready = []
        routes = self._routes
        for delivery in deliveries:
            subscription = routes.get(delivery.topic) or self._route(delivery.topic)
            if subscription is None:
                self._set_aside(delivery)
                continue
            self._open(delivery, subscription)
            ready.append(delivery)
        self._lanes.put(ready)

    def _open(self, delivery: Delivery, subscription: Subscription) -> None:
        try:
            subscription.open(delivery, self._codec)
            for watcher in self.watchers:
                watcher(delivery)
        except ENDINGS:
            raise
        except BaseException as error:
            self._condemn(delivery, error)

    def _hand_on(self, delivery: Delivery) -> bool:
        """Give a message whose handler is gone to another, or set it aside; return which."""
        subscription = self._route(delivery.topic)
        if subscription is None:
            self._set_aside(delivery)
            return False
        self._open(delivery, subscription)
        return True

    def _receive_live(self, deliveries: list[Delivery]) -> None:
        """Take live messages as long as there is room."""
        room = max(0, self._messages_max - self._lanes.load)
        self._metrics.received_total += len(deliveries)
        self._metrics.live_dropped_total += max(0, len(deliveries) - room)
        self._dispatch(deliveries[:room])

    def _route(self, topic: str) -> Subscription | None:
        try:
            return self._routes[topic]
        except KeyError:
            found = next((one for one in self._subscriptions if one.matches(topic)), None)
            if len(self._routes) >= ROUTES_CACHED_MAX:
                self._routes.clear()
            self._routes[topic] = found
            return found

    def _condemn(self, delivery: Delivery, error: BaseException) -> None:
        """Make a message that cannot be read a dead letter: trying again would not help."""
        delivery.attempts = self._config.max_attempts
        delivery.failures += (describe(error),)
        delivery.trace = trace_of(error)
        self._metrics.invalid_total += 1
        logger.error(
            "! message %d of `%s` cannot be read, and becomes a dead letter: %s",
            delivery.sequence,
            delivery.topic,
            delivery.failures[-1],
            exc_info=error,
        )

    def _set_aside(self, delivery: Delivery) -> None:
        """Hold or skip a message that has no handler."""
        if self._config.unhandled == "skip":
            self._metrics.skipped_total += 1
            self._engine.settle([delivery])
            return
        if delivery.topic not in self._unhandled:
            logger.warning(
                "! `%s` has no handler, its messages are held; hint: subscribe to it, "
                "or `await bus.forget(%r)`",
                delivery.topic,
                delivery.topic,
            )
        self._unhandled.setdefault(delivery.topic, []).append(delivery)
        self._lanes.hold(delivery)

    def _release(self, subscription: Subscription) -> None:
        """Dispatch the messages held for this handler."""
        for topic in [topic for topic in self._unhandled if subscription.matches(topic)]:
            deliveries = self._unhandled.pop(topic)
            self._lanes.release(deliveries)
            self._dispatch(deliveries)

    def _new(
        self,
        pattern: str,
        handler: Handler,
        *,
        argument: Any = None,
        key: Key | None = None,
        timeout_s: float | None = None,
    ) -> Subscription:
        subscription = Subscription(
            check_pattern(pattern),
            handler,
            argument=argument,
            key=key,
            timeout_s=timeout_s or self._config.process_timeout,
            threads=self._thread_pool,
        )
        self._codec.check(subscription.payload_type)
        return subscription

    async def _start(self, subscriptions: list[Subscription]) -> None:
        self._routes.clear()
        # Held messages come before any that are fetched from now on.
        for subscription in subscriptions:
            self._release(subscription)
        await self._engine.listen([one.pattern for one in subscriptions])
        for one in subscriptions:
            one.stop_live = self._engine.listen_live(one.pattern, self._receive_live)
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())

    def _thread_pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                self._config.max_threads, thread_name_prefix="penstock-handler"
            )
        return self._threads
