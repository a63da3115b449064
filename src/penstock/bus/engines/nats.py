"""
The bus on NATS: one connection, one JetStream context, one durable consumer.

See `layout` for the subjects and streams, `window` for publishing and `source` for
reading; this file puts them together behind the seam.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Protocol

from penstock import subjects
from penstock.bus.config import BusConfig, TopicOptions
from penstock.bus.engine import (
    Delivery,
    Features,
    Lag,
    LiveReceiver,
    OnSettled,
    OnTaken,
    ReplayFrom,
    Responder,
    Sender,
    TopicState,
    ignore_connection,
    ignore_settled,
    ignore_taken,
)
from penstock.bus.engines.layout import Layout, topic_of
from penstock.bus.engines.live import Live
from penstock.bus.engines.replay import replay_stream
from penstock.bus.engines.source import Source
from penstock.bus.engines.streams import StreamAdmin
from penstock.bus.engines.window import Window
from penstock.bus.natsconfig import NatsConfig
from penstock.client import Client, JetStream, connect
from penstock.client.options import tls_context
from penstock.errors import BusClosed, BusError


class Host(Protocol):
    """Somebody who starts the servers that an engine connects to."""

    async def start(self) -> tuple[str, ...]:
        """Start them; return where they are."""

    async def stop(self) -> None:
        """Stop them."""


class NatsEngine:
    """A NATS server or cluster."""

    features = Features(
        persistent=True,
        ephemeral=True,
        deduplicates=True,
        shares_order=False,
        orders_topics=True,
        limits_messages=True,
        shares_storage=True,
        delays=True,
    )

    def __init__(self, config: BusConfig, *, host: Host | None = None) -> None:
        self.config = config
        self.urls = config.nats.urls
        self._host = host
        self.on_settled: OnSettled = ignore_settled
        self.on_connection: Callable[[bool, Exception | None], None] = ignore_connection
        self.on_taken: OnTaken = ignore_taken
        self._layout = Layout(config.namespace)
        self._heartbeats = f"heartbeats.{config.service}.{secrets.token_hex(6)}"
        self._client: Client | None = None
        self._live: Live | None = None
        self._sources: dict[str, Source] = {}
        self._patterns: list[str] = []
        self._arrived = asyncio.Event()

    @property
    def client(self) -> Client:
        """The one connection."""
        if self._client is None:
            raise BusClosed("the bus is not open")
        return self._client

    @property
    def _open_live(self) -> Live:
        if self._live is None:
            raise BusClosed("the bus is not open")
        return self._live

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.connected

    async def connect(self) -> None:
        try:
            if self._host is not None:
                self.urls = await self._host.start()
            await self._connect()
        except BaseException:
            await self.close()
            raise

    async def _connect(self) -> None:
        nats = self.config.nats
        attempts_max = nats.reconnect_attempts_max
        self._client = await connect(
            self.urls,
            name=self.config.service,
            user=nats.user,
            password=nats.password,
            token=nats.token,
            nkey_seed=nats.nkey_seed,
            credentials=nats.credentials,
            tls=_tls(nats),
            tls_handshake_first=nats.tls_handshake_first,
            connect_timeout_s=nats.connect_timeout_s,
            reconnect_attempts_max=-1 if attempts_max is None else attempts_max,
            reconnect_wait_s=nats.reconnect_wait_s,
            reconnect_wait_s_max=nats.reconnect_wait_s_max,
            flush_bytes=nats.flush_bytes,
            pending_bytes_max=nats.reconnect_buffer_bytes,
            on_disconnected=lambda error: self.on_connection(False, error),
            on_reconnected=lambda: self.on_connection(True, None),
        )
        jetstream = nats.jetstream
        self._jetstream: JetStream = self._client.jetstream(
            domain=jetstream.domain, request_timeout_s=jetstream.request_timeout_s
        )
        self._window = Window(
            self._client,
            ack_timeout_s=self.config.publisher.ack_timeout_s,
            on_settled=lambda settled: self.on_settled(settled),
        )
        self._live = Live(self._client, queue=self.config.service)
        self._admin = StreamAdmin(self._jetstream, self._layout, jetstream.stream)
        if jetstream.enabled:
            await self._admin.discover()

    async def close(self) -> None:
        if self._live is not None:
            await self._live.close()
        if self._client is not None:
            await self._client.close()
        self._sources.clear()
        if self._host is not None:
            await self._host.stop()

    def target(self, topic: str, *, live: bool = False) -> bytes:
        if live:
            return self._layout.live_subject(topic).encode()
        if self._admin.has_own_stream(topic):
            return self._layout.own_subject(topic).encode()
        return self._layout.subject(topic).encode()

    def sender(self) -> Sender:
        return self._window.send

    def send_live(self, target: bytes, payload: bytes, block: bytes) -> bool:
        return self.client.send_nowait(target, payload, b"", block)

    async def make_room(self) -> None:
        await self.client.make_room()

    async def listen(self, patterns: Sequence[str]) -> None:
        before = list(self._patterns)
        self._patterns.extend(patterns)
        if self.config.nats.jetstream.enabled:
            try:
                await self.refresh()
            except BaseException:
                self._patterns = before
                raise

    async def refresh(self) -> None:
        """Give every stream that stores a topic of ours its durable consumer."""
        shared = [self._layout.subject(pattern) for pattern in self._patterns]
        await self._consume(self._layout.stream, shared)
        for topic in self._admin.own_topics:
            if self._is_listened(topic):
                await self._consume(
                    self._layout.own_stream(topic), [self._layout.own_subject(topic)]
                )

    async def forget(self, pattern: str) -> None:
        if pattern in self._patterns:
            self._patterns.remove(pattern)
        for stream, subject in self._admin.places(pattern):
            if not self._is_listened(topic_of(subject)):
                await self._leave(stream, subject)

    async def fetch(self, messages_max: int) -> list[Delivery]:
        self._arrived.clear()
        sources = list(self._sources.values())
        for source in sources:
            if source.is_stale and self.client.connected:
                found = await source.recover()
                if found:
                    return found
            source.ask(max(1, messages_max // len(sources)))
        deliveries = [delivery for source in sources for delivery in source.take()]
        if not deliveries:
            await self._wait()
            deliveries = [delivery for source in sources for delivery in source.take()]
        return deliveries

    def settle(self, deliveries: Collection[Delivery]) -> None:
        for source in self._sources.values():
            source.settle([one for one in deliveries if one.source is source])

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        for source in self._sources.values():
            source.give_back([one for one in deliveries if one.source is source])

    def extend(self, deliveries: Collection[Delivery]) -> None:
        for source in self._sources.values():
            source.extend([one for one in deliveries if one.source is source])

    async def lag(self) -> Lag:
        messages, oldest_ns = 0, 0
        for source in self._sources.values():
            one = await self._admin.lag(source)
            messages += one.messages
            oldest_ns = min(filter(None, (oldest_ns, one.oldest_ns)), default=0)
        return Lag(messages, oldest_ns)

    async def inspect(self, topic: str) -> TopicState | None:
        return await self._admin.inspect(topic)

    async def create(self, topic: str, options: TopicOptions) -> None:
        await self._admin.create(topic, options)
        if self._patterns:
            await self.refresh()

    async def update(self, topic: str, options: TopicOptions) -> None:
        await self._admin.update(topic, options)

    async def replay(self, pattern: str, start: ReplayFrom) -> AsyncIterator[list[Delivery]]:
        for stream, subject in self._admin.places(pattern):
            async for deliveries in replay_stream(self._jetstream, stream, subject, start):
                yield deliveries

    async def discard(self, topic: str, sequence: int) -> bool:
        return await self._admin.discard(topic, sequence)

    def listen_live(self, pattern: str, receive: LiveReceiver) -> Callable[[], None]:
        return self._open_live.listen(self._layout.live_subject(pattern), receive)

    async def request(self, topic: str, payload: bytes, *, timeout_s: float) -> bytes:
        subject = self._layout.live_subject(topic)
        reply = await self.client.request(subject, payload, timeout_s=timeout_s)
        error = reply.header("Bus-Error")
        if error is not None:
            raise BusError(f"`{topic}` answers: {error}")
        return reply.payload

    def respond(self, pattern: str, responder: Responder) -> Callable[[], None]:
        return self._open_live.respond(self._layout.live_subject(pattern), responder)

    async def echo(self, payload: bytes) -> None:
        came_back = asyncio.Event()

        def receive(deliveries: list[Delivery]) -> None:
            if any(delivery.payload == payload for delivery in deliveries):
                came_back.set()

        stop = self.listen_live(self._heartbeats, receive)
        try:
            self.send_live(self.target(self._heartbeats, live=True), payload, b"")
            await came_back.wait()
        finally:
            stop()

    async def flush(self) -> None:
        await self.client.flush()

    async def _consume(self, stream: str, filters: list[str]) -> None:
        consumer = self.config.nats.jetstream.consumer
        await self._admin.ensure_consumer(stream, self.config.service, consumer, filters)
        if stream not in self._sources:
            self._sources[stream] = Source(
                self.client,
                self._jetstream,
                stream=stream,
                durable=self.config.service,
                config=consumer,
                arrived=self._arrived,
            )
        self._arrived.set()

    async def _leave(self, stream: str, subject: str) -> None:
        if await self._admin.unfilter(stream, self.config.service, subject):
            return
        source = self._sources.pop(stream, None)
        if source is not None:
            source.close()

    def _is_listened(self, topic: str) -> bool:
        return any(subjects.matches(one.encode(), topic.encode()) for one in self._patterns)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self.config.nats.jetstream.consumer.fetch_wait_s):
                await self._arrived.wait()
        except TimeoutError:
            return


def _tls(nats: NatsConfig) -> ssl.SSLContext | None:
    """Return how to speak TLS; None leaves it to the server and the URL."""
    if nats.tls_ca is None and nats.tls_certificate is None:
        return None
    return tls_context(nats.tls_ca, nats.tls_certificate, nats.tls_key)
