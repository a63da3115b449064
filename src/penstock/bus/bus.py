"""The event bus: everything an application needs, in one object."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import get_ident
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

import msgspec

from penstock.bus.config.bus import BusConfig, BusSettings, TopicOptions, TopicSettings
from penstock.bus.config.loading import with_settings
from penstock.bus.deadletters.deadletters import DeadLetters
from penstock.bus.engine import Delivery, Engine, Features, Outgoing, Receipt, ReplayFrom
from penstock.bus.events.codec import Codec, Upcaster
from penstock.bus.events.envelope import Envelope
from penstock.bus.events.names import (
    check_apart,
    check_headers,
    check_line,
    check_pattern,
    check_text,
    check_topic,
)
from penstock.bus.handlers import (
    RUNNING,
    H,
    Handler,
    Key,
    Subscription,
    check_callback,
    check_handler,
)
from penstock.bus.lanes import Lanes
from penstock.bus.opening import engine_of, read_source
from penstock.bus.operate.backlog import Backlog, BacklogCallback, BacklogMonitor
from penstock.bus.operate.failures import ENDINGS
from penstock.bus.operate.health import HealthCallback, HealthMonitor, Heartbeat
from penstock.bus.operate.metrics import Metrics
from penstock.bus.publisher import PublishCallback, Publisher
from penstock.bus.results import ResultStream
from penstock.bus.starting import keep_trying
from penstock.bus.subscriber import Subscriber, Wanted
from penstock.bus.topics.topics import TopicReport, Topics
from penstock.errors import BusClosed, BusError, PenstockError
from penstock.protocol.compression import compressor

logger = logging.getLogger("penstock.bus")

DRAIN_POLL_S = 0.02
DRAIN_LOOKS = 5
"""Looks in a row that must find nothing: a server may count a message after it acknowledged it."""

CANCEL_SHARE = 0.2
CANCEL_S_MAX = 2.0
"""The share of the closing time, and its limit, left for handlers that had to be cancelled."""


class Health(NamedTuple):
    """The state of the bus right now."""

    connected: bool
    disconnected_s: float
    """Seconds since the connection was lost; 0 while it is there, and once the bus is closed."""
    last_error: str
    """Why the connection was lost; empty while it is there."""
    unacked: int
    in_flight: int
    parked_keys: Mapping[str, str]
    """Keys that wait for another attempt, or are blocked, with the last error of each."""
    heartbeat: Heartbeat
    active: bool = False
    """Whether this process handles events of its service; if not, it is a standby."""
    members: Mapping[str, int] = MappingProxyType({})
    """How many slots of the keys each process of the service has; partitions, on Kafka."""
    leader: str = ""
    """The process that reads and hands out; empty where the broker does that."""
    unhandled: tuple[str, ...] = ()
    """Patterns the service once read and has no handler for now: their messages wait."""
    dead_letters: int = 0
    """The number of stored dead letters, counted every few seconds."""


class EventBus:
    """
    Publish and handle events: in order by aggregate, also when handlers fail.

    Made by `EventBus.open(…)` and used with `async with`. Handlers registered
    before that, by `on`, are subscribed when the bus opens.
    """

    def __init__(self, config: BusConfig, *, engine: Engine | None = None) -> None:
        self.config = config
        self.metrics = Metrics()
        self.codec = Codec(
            compressor(config.publisher.compression, bytes_min=config.publisher.compress_from)
        )
        self._given_engine = engine
        self._early: list[Wanted] = []
        self._is_open = False
        """Whether there is an engine to work with: until the last handler has ended."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._accepts = 0
        """The thread that may use the bus; 0 while none may."""
        self._closing: asyncio.Task[None] | None = None
        self._lost_s = 0.0
        self._last_error = ""
        self._on_reconnected: list[Callable[[], None]] = []

    @classmethod
    def open(
        cls,
        source: str | Path | Mapping[str, Any] | BusConfig | None = None,
        *,
        preset: str = "",
        engine: Engine | None = None,
        **settings: Unpack[BusSettings],
    ) -> EventBus:
        """
        Return a bus on `embedded:`, `embedded:<directory>`, `nats://…`, `kafka://…`, or a
        configuration.

        A configuration is a path of a YAML file, a mapping, or a `BusConfig`.
        `settings` are fields of `BusConfig` and win over all of these.
        """
        config = read_source(source, preset=preset)
        return cls(with_settings(config, settings), engine=engine)

    async def __aenter__(self) -> EventBus:
        if self._is_open or self._closing is not None:
            raise BusClosed("a bus is opened once; hint: another `EventBus.open(…)`")
        config = self.config
        self._loop = asyncio.get_running_loop()
        await keep_trying(self._connect, timeout_s=config.connect_timeout)
        self._topics = Topics(self.engine, config)
        self._publisher = Publisher(
            self.engine, self._topics, self.codec, config=config.publisher, metrics=self.metrics
        )
        self._dead_letters = DeadLetters(
            self.engine, self._publisher, config=config, metrics=self.metrics
        )
        self._lanes = Lanes(
            self.engine,
            config=config.subscriber,
            ack_wait_s=config.nats.jetstream.consumer.ack_wait,
            bury=self._dead_letters.bury,
            metrics=self.metrics,
        )
        self._subscriber = Subscriber(
            self.engine, self.codec, config=config, metrics=self.metrics, lanes=self._lanes
        )
        self.engine.on_taken = self._subscriber.drop
        self.engine.key_of = self._subscriber.key_of
        self.engine.on_lease = self._lanes.rely_until
        self._backlog = BacklogMonitor(self.engine, config.backlog)
        self._health = HealthMonitor(self.engine, config.health)
        self._is_open = True
        self._accepts = get_ident()
        try:
            await self._prepare()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connect(self) -> None:
        self.engine = self._given_engine or engine_of(self.config)
        self.engine.on_connection = self._connection_changed
        await self.engine.connect()

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._accepts != 0

    @property
    def features(self) -> Features:
        """The capabilities of the engine."""
        return self.engine.features

    @property
    def left_behind(self) -> int:
        """How many handlers did not end when the bus was closed."""
        return self._lanes.left_behind if hasattr(self, "_lanes") else 0

    def health(self) -> Health:
        """Return the state of the bus, open or not, without asking the broker."""
        if not hasattr(self, "_health"):
            return Health(False, 0.0, "not opened yet", 0, 0, {}, Heartbeat("healthy", 0, 0.0))
        connected = self._is_open and self.engine.connected
        return Health(
            connected=connected,
            disconnected_s=monotonic() - self._lost_s if self._lost_s and self._is_open else 0.0,
            last_error=self._last_error,
            unacked=self._publisher.unacked,
            in_flight=self._lanes.in_flight,
            parked_keys=self._lanes.parked_keys,
            heartbeat=self._health.last,
            active=self._is_open and self.engine.is_active,
            members=self.engine.membership.members,
            leader=self.engine.membership.leader,
            unhandled=tuple(self.engine.unhandled),
            dead_letters=self.metrics.dead_letters,
        )

    def snapshot(self) -> Metrics:
        """Return all counters as they are now."""
        if not hasattr(self, "_lanes"):
            return self.metrics
        membership = self.engine.membership
        return dataclasses.replace(
            self.metrics,
            members=len(membership.members),
            slots=membership.members.get(membership.me, 0),
            takeovers_total=membership.takeovers,
            in_flight=self._lanes.in_flight,
            parked_keys=len(self._lanes.parked_keys),
            unacked=self._publisher.unacked,
        )

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str = "",
        headers: Iterable[tuple[str, str]] | None = None,
        message_id: str = "",
        timeout_s: float | None = None,
    ) -> Receipt | None:
        """
        Publish bytes as they are and wait for the ack; on an ephemeral topic there is none.

        `key` is the ordering key, on engines that order by key.
        """
        self._check_open()
        return await self._publisher.publish(
            topic,
            payload,
            key=check_text("key", key),
            headers=check_headers(headers or ()),
            message_id=check_line("message_id", message_id),
            timeout_s=timeout_s,
        )

    async def publish_envelope(
        self, topic: str, envelope: Envelope[Any], *, timeout_s: float | None = None
    ) -> None:
        """Hand an event over; waits only while the window is full, at most `timeout_s`."""
        if (
            timeout_s is None
            and self._accepts == get_ident()  # asking for the loop takes ten times as long
            and self._publisher.publish_at_once(topic, envelope)
        ):
            return
        self._check_open()
        await self._publisher.publish_envelope(topic, envelope, timeout_s=timeout_s)

    async def publish_envelope_sync(
        self, topic: str, envelope: Envelope[Any], *, timeout_s: float | None = None
    ) -> Receipt:
        """Publish an event and return once it is stored."""
        self._check_open()
        return await self._publisher.publish_envelope_sync(topic, envelope, timeout_s=timeout_s)

    async def publish_envelope_batch(
        self, topic: str, envelopes: Iterable[Envelope[Any]], *, timeout_s: float | None = None
    ) -> list[Receipt]:
        """Publish all, wait for every ack; raise `BatchFailed` that lists each failure."""
        self._check_open()
        return await self._publisher.publish_envelope_batch(topic, envelopes, timeout_s=timeout_s)

    def on_published(self, callback: PublishCallback) -> PublishCallback:
        """Call `callback` with the result of every asynchronous publish."""
        self._check_open()
        check_callback(callback)
        return self._publisher.on_published(callback)

    def results(self, tenant_id: int | str | None = None) -> ResultStream:
        """Iterate over the results of asynchronous publishes, of one tenant or of all."""
        self._check_open()
        return self._publisher.results(tenant_id)

    async def flush(self) -> None:
        """Return once every event handed over so far is stored or has failed."""
        self._check_open()
        await self._publisher.drain()

    async def drain(self) -> None:
        """
        Return once all that was published is stored, and handled or a dead letter after its
        attempts.

        Blocked keys stay blocked. It asks the broker whether there is more: meant for the end of
        a program or a test.
        """
        self._check_open()
        looks = 0
        while looks < DRAIN_LOOKS:
            await asyncio.sleep(DRAIN_POLL_S)
            await self._lanes.drain()
            looks = looks + 1 if await self._is_drained() else 0

    def on(
        self, pattern: str, *, key: Key | None = None, timeout_s: float | None = None
    ) -> Callable[[H], H]:
        """
        Register a handler, before the bus opens. Its annotation selects its argument.
        `key` gives the ordering key of a message; without it, the aggregate is the key.

        When the bus opens, it subscribes all handlers, or none if one cannot be subscribed.
        """
        if self._closing is not None:
            raise BusClosed("the bus is closed; hint: another `EventBus.open(…)`")
        if self._is_open:
            raise BusClosed("`on` is for before the bus opens; hint: `await bus.subscribe(…)`")

        check_apart(check_pattern(pattern), (early[0] for early in self._early))

        def register(handler: H) -> H:
            check_handler(handler)
            self._early.append((pattern, handler, {"key": key, "timeout_s": timeout_s}))
            return handler

        return register

    async def subscribe(
        self,
        pattern: str,
        handler: Handler,
        *,
        key: Key | None = None,
        timeout_s: float | None = None,
    ) -> Subscription:
        """Call `handler` with the bytes of every message; `key` gives the ordering key."""
        return await self._subscribe(pattern, handler, argument=bytes, key=key, timeout_s=timeout_s)

    async def subscribe_envelope(
        self, pattern: str, handler: Handler, *, timeout_s: float | None = None
    ) -> Subscription:
        """Call `handler` with every event, as the type its annotation names."""
        return await self._subscribe(pattern, handler, timeout_s=timeout_s)

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Stop calling a handler. Messages of its topics are held for another."""
        self._check_loop()
        self._subscriber.unsubscribe(subscription)

    async def forget(self, pattern: str) -> None:
        """
        Make this service stop reading these topics, also after a restart.

        In the process that reads, or while none does. What is handled again later begins
        with the oldest event.
        """
        self._check_open()
        await self.engine.forget(pattern)

    def messages(
        self, pattern: str, kind: Any = None
    ) -> AbstractAsyncContextManager[AsyncIterator[Any]]:
        """`async with bus.messages(…) as events: async for event in events`."""
        self._check_open()
        return self._subscriber.messages(pattern, argument=kind)

    def upcaster(self, event_type: str, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """Register a function that converts a payload of `from_version` to the next version."""
        return self.codec.upcaster(event_type, from_version=from_version)

    def reopen(self, key: str) -> bool:
        """Try a parked or blocked key again, now; False if it is neither."""
        self._check_loop()
        return self._lanes.reopen(key)

    async def configure_topic(
        self, topic: str, options: TopicOptions | None = None, **settings: Unpack[TopicSettings]
    ) -> TopicReport:
        """Declare a topic and apply the topic strategy to it. Idempotent."""
        self._check_open()
        return await self._topics.configure(topic, options or TopicOptions(**settings))

    async def check_topic(self, topic: str, options: TopicOptions | None = None) -> TopicReport:
        """Compare a topic with the broker's, and change nothing."""
        self._check_open()
        return await self._topics.check(topic, options)

    async def replay(
        self,
        topic: str,
        *,
        sequence: int | None = None,
        time: datetime | None = None,
        key: str | None = None,
        payload_type: Any = Any,
    ) -> AsyncIterator[tuple[Delivery, Envelope[Any]]]:
        """Read stored events again up to now: from a sequence, a time, of one key."""
        self._check_open()
        start = ReplayFrom(sequence=sequence, time=time)
        async with aclosing(self.engine.replay(check_topic(topic), start)) as stored:
            async for deliveries in stored:
                for delivery in deliveries:
                    envelope = self.codec.decode(delivery.payload, payload_type)
                    if key is None or key == envelope.aggregate_id:
                        yield delivery, envelope

    async def request(self, topic: str, payload: Any, *, timeout_s: float = 5.0) -> Any:
        """Send a request to the responder of `topic`; return its reply, decoded from JSON."""
        self._check_open()
        body = msgspec.json.encode(payload)
        reply = await self.engine.request(check_topic(topic), body, timeout_s=timeout_s)
        return msgspec.json.decode(reply)

    def respond(self, topic: str, handler: Callable[[Any], Any]) -> Callable[[], None]:
        """Answer requests with the result of `handler`; return a function that stops it."""
        self._check_open()

        return self.engine.respond(topic, self._subscriber.answering(handler))

    async def backlog(self) -> Backlog:
        """Return the number of events not yet handled, and the age of the oldest."""
        self._check_open()
        return await self._backlog.look()

    def on_backlog(self, callback: BacklogCallback) -> BacklogCallback:
        """Call `callback` when a backlog begins and when it ends."""
        self._check_open()
        check_callback(callback)
        return self._backlog.on_change(callback)

    async def beat(self) -> Heartbeat:
        """Send one heartbeat through the broker, and return the resulting health."""
        self._check_open()
        return await self._health.beat()

    def on_health(self, callback: HealthCallback) -> HealthCallback:
        """Start heartbeats, and call `callback` when the health gets better or worse."""
        self._check_open()
        check_callback(callback)
        return self._health.on_change(callback)

    def instrument(
        self,
        *,
        outgoing: Callable[[Outgoing], None],
        delivery: Callable[[Delivery], None],
    ) -> None:
        """
        Show every message to these functions: on its way out, and before its handler runs.

        May be called several times; all are shown, in that order.
        """
        self._check_open()
        check_callback(outgoing)
        check_callback(delivery)
        self._publisher.watch(outgoing)
        self._subscriber.watchers.append(delivery)

    def on_reconnected(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` each time the connection is back."""
        check_callback(callback)
        self._on_reconnected.append(callback)
        return callback

    def run(self, *, host: str = "127.0.0.1", port: int | None = None) -> None:
        """
        Open the bus, handle events until SIGTERM or SIGINT, and close it: a whole service.

        With a `port` it answers `/live`, `/ready` and `/metrics` there. A second signal ends
        the process at once.
        """
        from penstock.bus.running import run  # it stands above the bus

        run(self, host=host, port=port)

    async def close(self) -> None:
        """
        Accept nothing more, finish running handlers, flush, and give the other messages back.

        It returns once the broker has stored all acks; if it is away or cannot store, once it
        is back or can.
        Within `shutdown_timeout`: a handler that takes longer is cancelled, and one
        that does not end even then is left behind.
        """
        if self._is_open:
            self._check_loop()
        self._accepts = 0
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if not self._is_open:
            return
        timeout_s = self.config.shutdown_timeout
        deadline_s = monotonic() + timeout_s
        grace_s = min(timeout_s * CANCEL_SHARE, CANCEL_S_MAX)
        self.engine.retire()
        try:
            async with asyncio.timeout(timeout_s - grace_s):
                await self._subscriber.stop_fetching()
                await self._lanes.finish()
                await self._publisher.drain()
        except TimeoutError:
            logger.warning("! closing: handlers or acks took longer than `shutdown_timeout`")
        await self._lanes.close(grace_s=grace_s)
        self._is_open = False
        self._publisher.close()
        self._subscriber.close()
        await self._backlog.close()
        await self._health.close()
        await self._dead_letters.close()
        await self._flush_engine(max(deadline_s - monotonic(), grace_s))
        await self.engine.close()

    async def _flush_engine(self, timeout_s: float) -> None:
        """Send the last acks to the broker; if it is away, wait until it is back."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.engine.flush()
        except (PenstockError, TimeoutError) as error:
            logger.warning(
                "! closing: the broker has not confirmed within `shutdown_timeout` that %d events "
                "were handled, so they may come again%s",
                self.engine.untold,
                f": {error}" if str(error) else "",
            )

    async def _prepare(self) -> None:
        timeout_s = self.config.connect_timeout
        for topic in self.config.topics:
            await keep_trying(partial(self._topics.prepare, topic), timeout_s=timeout_s)
        if self._early:
            await keep_trying(self._subscribe_early, timeout_s=timeout_s)
        self._dead_letters.watch()

    async def _subscribe_early(self) -> None:
        await self._topics.prepare_shared()
        await self._subscriber.subscribe_all(self._early)

    async def _subscribe(self, pattern: str, handler: Handler, **settings: Any) -> Subscription:
        self._check_open()
        await self._topics.prepare_shared()
        return await self._subscriber.subscribe(pattern, handler, **settings)

    async def _is_drained(self) -> bool:
        if self._lanes.is_retrying or self._publisher.unacked:
            return False  # without asking the broker
        lag = await self.engine.lag()
        return lag.messages <= self._lanes.blocked and not self._lanes.is_busy

    def _connection_changed(self, connected: bool, error: Exception | None) -> None:
        if not connected:
            self._lost_s = monotonic()
            self._last_error = str(error)
            return
        self._lost_s, self._last_error = 0.0, ""
        self.metrics.reconnects_total += 1
        for callback in self._on_reconnected:
            try:
                callback()
            except ENDINGS:
                raise
            except BaseException:
                logger.exception("! a reconnect callback failed")

    def _check_open(self) -> None:
        if self._accepts and asyncio._get_running_loop() is self._loop:
            return
        self._check_loop()
        # A handler that runs while the bus closes may finish its work.
        if not self._is_open or RUNNING.get() is None:
            raise BusClosed("the bus is closed, or closing: it takes nothing more")

    def _check_loop(self) -> None:
        if not self._is_open and (self._closing is None or self._loop is None):
            raise BusClosed("the bus is not open; hint: `async with EventBus.open(…) as bus`")
        if asyncio._get_running_loop() is not self._loop:
            raise BusError(
                "the bus belongs to another thread or event loop; hint: `SyncEventBus` can be "
                "used from any thread, and a bus of its own on another loop"
            )
