"""
The bus on NATS: one connection, one JetStream context.

See `layout` for the subjects and streams, `window` for publishing and `reader` for
reading; this file puts them together behind the seam.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import ssl
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import Protocol

from penstock.bus.config.bus import BusConfig, TopicOptions
from penstock.bus.config.nats import NatsConfig
from penstock.bus.engine import (
    Delivery,
    Features,
    KeyOf,
    Lag,
    LiveReceiver,
    Membership,
    OnLease,
    OnMoving,
    OnSettled,
    OnTaken,
    ReplayFrom,
    Responder,
    Sender,
    TopicState,
    ignore_connection,
    ignore_lease,
    ignore_moving,
    ignore_settled,
    ignore_taken,
    no_key,
)
from penstock.bus.engines.nats.finding import find_namespaces, find_services
from penstock.bus.engines.nats.layout import Layout
from penstock.bus.engines.nats.live import Live
from penstock.bus.engines.nats.reader import Reader
from penstock.bus.engines.nats.replay import replay_stream
from penstock.bus.engines.nats.streams import StreamAdmin
from penstock.bus.engines.nats.window import Window
from penstock.bus.operate.failures import STOPS
from penstock.client import Client, JetStream, connect
from penstock.client.options import tls_context
from penstock.errors import BusClosed, BusError, PenstockError

logger = logging.getLogger("penstock.bus")

WATCH_S = 2.0
"""How often topics are looked for that have got a stream of their own."""


class Host(Protocol):
    """Starts and stops the servers that an engine connects to."""

    async def start(self) -> tuple[str, ...]:
        """Start the servers; return their addresses."""

    async def stop(self) -> None:
        """Stop them."""


class NatsEngine:
    """A NATS server or cluster."""

    features = Features(
        persistent=True,
        ephemeral=True,
        deduplicates=True,
        shares_order=True,
        by_pattern=True,
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
        self.on_lease: OnLease = ignore_lease
        self.key_of: KeyOf = no_key
        self.on_moving: OnMoving = ignore_moving
        self._layout = Layout(config.namespace)
        self._name = _process_name()
        self._heartbeats = f"heartbeats.{config.service}.{secrets.token_hex(6)}"
        self._client: Client | None = None
        self._live: Live | None = None
        self._reader: Reader | None = None
        self._watching: asyncio.Task[None] | None = None
        self._moving = asyncio.Lock()

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
    def _open_reader(self) -> Reader:
        if self._reader is None:
            raise BusClosed("the bus is not open")
        return self._reader

    @property
    def is_active(self) -> bool:
        return self._reader is not None and self._reader.is_active

    @property
    def membership(self) -> Membership:
        return Membership() if self._reader is None else self._reader.membership

    @property
    def unhandled(self) -> Sequence[str]:
        return () if self._reader is None else self._reader.unhandled

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
        attempts_max = nats.max_reconnects
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
            connect_timeout_s=nats.connection_timeout,
            reconnect_attempts_max=-1 if attempts_max is None else attempts_max,
            reconnect_wait_s=nats.reconnect_wait,
            reconnect_wait_s_max=nats.max_reconnect_wait,
            flush_bytes=nats.flush_bytes,
            pending_bytes_max=nats.reconnect_buffer,
            on_disconnected=lambda error: self.on_connection(False, error),
            on_reconnected=lambda: self.on_connection(True, None),
        )
        jetstream = nats.jetstream
        self._jetstream: JetStream = self._client.jetstream(
            domain=jetstream.domain, request_timeout_s=jetstream.request_timeout
        )
        self._window = Window(
            self._client,
            ack_timeout_s=self.config.publisher.publish_timeout,
            on_settled=lambda settled: self.on_settled(settled),
        )
        self._live = Live(self._client, queue=self.config.service)
        self._admin = StreamAdmin(self._jetstream, self.config)
        self._reader = Reader(
            self._client,
            self._jetstream,
            self._admin,
            config=self.config,
            holder=self._name,
            on_taken=lambda is_taken: self.on_taken(is_taken),
            on_lease=lambda until_s: self.on_lease(until_s),
            key_of=lambda delivery: self.key_of(delivery),
        )
        if jetstream.enabled:
            self._admin.own_topics.update(await self._admin.discover())
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        if self._reader is not None:
            await self._reader.close()
            self._reader = None
        if self._live is not None:
            await self._live.close()
        if self._client is not None:
            await self._client.close()
        if self._host is not None:
            await self._host.stop()

    def target(self, topic: str, *, live: bool = False) -> bytes:
        if live:
            return self._layout.live_subject(topic).encode()
        return self._admin.subject(topic).encode()

    def sender(self) -> Sender:
        return self._window.send

    def send_live(self, target: bytes, payload: bytes, block: bytes) -> bool:
        return self.client.send_nowait(target, payload, b"", block)

    async def make_room(self) -> None:
        await self.client.make_room()

    async def listen(self, patterns: Sequence[str]) -> None:
        if self.config.nats.jetstream.enabled:
            await self._admin.check_dead(patterns)
            await self._open_reader.listen(patterns)

    def rest(self, pattern: str) -> None:
        if self._reader is not None:
            self._reader.rest(pattern)

    async def forget(self, pattern: str) -> None:
        await self._open_reader.forget(pattern)

    async def fetch(self, messages_max: int) -> list[Delivery]:
        return await self._open_reader.fetch(messages_max)

    def settle(self, deliveries: Collection[Delivery]) -> None:
        if self._reader is not None:
            self._reader.settle(deliveries)

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        if self._reader is not None:
            self._reader.give_back(deliveries)

    def owed(self, waiting: Collection[Delivery]) -> Collection[Delivery]:
        return ()

    def retire(self) -> None:
        if self._reader is not None:
            self._reader.retire()

    def extend(self, deliveries: Collection[Delivery]) -> None:
        if self._reader is not None:
            self._reader.extend(deliveries)

    async def lag(self) -> Lag:
        return await self._open_reader.lag()

    async def inspect(self, topic: str) -> TopicState | None:
        state = await self._admin.inspect(topic)
        if state is not None and not state.shared:
            await self._move(topic)
        return state

    async def topics(self) -> dict[str, TopicState]:
        return await self._admin.topics()

    async def create(self, topic: str, options: TopicOptions) -> None:
        await self._admin.create(topic, options)
        if options.limits:
            await self._move(topic)

    async def update(self, topic: str, options: TopicOptions) -> None:
        await self._admin.update(topic, options)

    async def replay(self, pattern: str, start: ReplayFrom) -> AsyncGenerator[list[Delivery], None]:
        for stream, _, subject in self._admin.places(pattern):
            async with aclosing(replay_stream(self._jetstream, stream, subject, start)) as found:
                async for deliveries in found:
                    yield deliveries

    async def discard(self, topic: str, sequence: int) -> bool:
        return await self._admin.discard(topic, sequence)

    async def count_dead_letters(self) -> int:
        return await self._admin.count_dead_letters()

    async def services(self) -> dict[str, Membership]:
        return await find_services(self._jetstream, self._layout)

    async def namespaces(self) -> list[str]:
        return await find_namespaces(self._jetstream)

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

    @property
    def untold(self) -> int:
        return 0 if self._reader is None else self._reader.untold

    async def flush(self) -> None:
        if self._reader is not None:
            await self._reader.tell()
        if self.connected:
            await self.client.flush()

    async def _watch(self) -> None:
        """Find topics that other processes give a stream of their own."""
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                for topic in await self._admin.discover():
                    await self._move(topic)
                await self._open_reader.refresh()  # what an earlier attempt could not read
            except PenstockError as error:
                logger.info("= new streams cannot be seen: %s", error)
            except STOPS:
                raise
            except BaseException:
                logger.exception("! looking for new streams failed")

    async def _move(self, topic: str) -> None:
        """Publish to a topic's own stream, once all earlier messages are stored."""
        async with self._moving:  # several may find out at the same time
            if topic in self._admin.own_topics:
                return
            self.on_moving(topic, True)
            try:
                await self._window.passed()
                self._admin.own_topics.add(topic)
            finally:
                self.on_moving(topic, False)
        await self._open_reader.refresh()


def _process_name() -> str:
    """Return a unique name of this process, for people to read and for use in subjects."""
    host = "".join(one if one.isalnum() and one.isascii() else "-" for one in platform.node())
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


def _tls(nats: NatsConfig) -> ssl.SSLContext | None:
    """Return the TLS settings; None leaves TLS to the server and the URL."""
    if nats.tls_ca is None and nats.tls_certificate is None:
        return None
    return tls_context(nats.tls_ca, nats.tls_certificate, nats.tls_key)
