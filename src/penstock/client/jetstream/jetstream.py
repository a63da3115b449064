"""JetStream on a client: publish with acks, manage streams and consumers, consume."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, Unpack

from penstock.client.jetstream.api import Api, CoreClient
from penstock.client.jetstream.consumers import Consumers
from penstock.client.jetstream.ordered import OrderedConsumer
from penstock.client.jetstream.puback import PubAck
from penstock.client.jetstream.pull import PullConsumer
from penstock.client.jetstream.push import PushConsumer
from penstock.client.jetstream.settings import ConsumerSettings
from penstock.client.jetstream.streams import Streams
from penstock.client.jetstream.window import OnAck, PublishWindow, Sink
from penstock.client.messages import Headers, encode_headers, header_pairs
from penstock.client.subscription import Callback
from penstock.config.setting import setting
from penstock.errors import BatchFailed, ConfigError, NoResponders, PenstockError
from penstock.protocol import wellknown


@dataclass(frozen=True, kw_only=True)
class JetStreamOptions:
    """Settings of JetStream on one client."""

    domain: str = setting("", "JetStream domain to use.")
    api_prefix: str = setting(wellknown.API, "Subject prefix of all API calls.")
    request_timeout_s: float = setting(5.0, "Timeout of an API call.")
    window_messages_max: int = setting(4096, "Unacked messages above which publishers wait.")
    ack_timeout_s: float = setting(5.0, "Timeout of an ack.")
    publish_retries: int = setting(
        2, "Retries of `publish` while no stream answers, as during an election."
    )
    publish_retry_wait_s: float = setting(0.25, "Wait before each retry.")

    def __post_init__(self) -> None:
        if self.window_messages_max <= 0 or self.ack_timeout_s <= 0:
            raise ConfigError("`window_messages_max` and `ack_timeout_s` must be positive")
        if self.domain and self.api_prefix != wellknown.API:
            raise ConfigError("only one of `domain` and `api_prefix` can be used")

    @property
    def prefix(self) -> str:
        """The prefix of all API calls, given directly or by the domain."""
        return wellknown.api_of(self.domain) if self.domain else self.api_prefix


class JetStreamSettings(TypedDict, total=False):
    """The fields of `JetStreamOptions` as keywords."""

    domain: str
    api_prefix: str
    request_timeout_s: float
    window_messages_max: int
    ack_timeout_s: float
    publish_retries: int
    publish_retry_wait_s: float


@dataclass(frozen=True, kw_only=True)
class Expect:
    """Conditions for storing a message; the server refuses it if one does not hold."""

    stream: str | None = None
    last_sequence: int | None = None
    last_subject_sequence: int | None = None
    last_message_id: str | None = None

    def pairs(self) -> Iterable[tuple[str, str]]:
        """Return the conditions as headers."""
        for name, value in (
            ("Nats-Expected-Stream", self.stream),
            ("Nats-Expected-Last-Sequence", self.last_sequence),
            ("Nats-Expected-Last-Subject-Sequence", self.last_subject_sequence),
            ("Nats-Expected-Last-Msg-Id", self.last_message_id),
        ):
            if value is not None:
                yield name, str(value)


class Outgoing(NamedTuple):
    """One message of a batch. The id lets JetStream recognise a duplicate."""

    subject: str
    payload: bytes = b""
    headers: Headers | None = None
    message_id: str | None = None
    expect: Expect | None = None


class JetStream:
    """JetStream as one client sees it."""

    def __init__(self, client: CoreClient, options: JetStreamOptions) -> None:
        self.options = options
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._api = Api(client, prefix=options.prefix, timeout_s=options.request_timeout_s)
        self._window: PublishWindow | None = None
        self.streams = Streams(self._api)
        self.consumers = Consumers(self._api)

    @property
    def unacked(self) -> int:
        """The number of published messages without an ack yet."""
        return self._window.unacked if self._window is not None else 0

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Headers | None = None,
        message_id: str | None = None,
        expect: Expect | None = None,
    ) -> PubAck:
        """Publish and wait for the ack."""
        message = Outgoing(subject, payload, headers, message_id, expect)
        for _ in range(self.options.publish_retries):
            try:
                return await self._send(message)
            except NoResponders:
                # None of our messages can overtake this one: its publisher waits here.
                await asyncio.sleep(self.options.publish_retry_wait_s)
        return await self._send(message)

    async def publish_async(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Headers | None = None,
        message_id: str | None = None,
        expect: Expect | None = None,
    ) -> asyncio.Future[PubAck]:
        """Send a message and return the future of its ack; wait if the window is full."""
        future: asyncio.Future[PubAck] = self._loop.create_future()
        await self._hand_over(subject, payload, headers, message_id, expect, future)
        return future

    async def publish_with(self, message: Outgoing, on_ack: OnAck) -> None:
        """Send a message; `on_ack` is called with the ack or the error."""
        await self._hand_over(*message, on_ack)

    async def publish_batch(self, messages: Iterable[Outgoing | tuple[str, bytes]]) -> list[PubAck]:
        """Publish all, and wait for every ack; raise `BatchFailed` with each failure."""
        futures = [await self._hand_over_safely(Outgoing(*message)) for message in messages]
        acks: list[PubAck | None] = []
        failures: dict[int, Exception] = {}
        for index, future in enumerate(futures):
            try:
                acks.append(await future)
            except PenstockError as error:
                failures[index] = error
                acks.append(None)
        if failures:
            raise BatchFailed(failures, acks)
        return acks  # type: ignore[return-value]

    async def flush(self) -> None:
        """Return once every message published so far is acked or has failed."""
        if self._window is not None:
            await self._window.drained()

    async def account_info(self) -> dict[str, Any]:
        """Return the usage and limits of the account."""
        return await self._api.call("INFO")

    def pull_consumer(self, stream: str, consumer: str) -> PullConsumer:
        """Return a handle on an existing pull consumer, without asking the server."""
        return PullConsumer(self._api, stream, consumer)

    async def push_consumer(
        self, stream: str, consumer: str, *, callback: Callback | None = None
    ) -> PushConsumer:
        """Bind to an existing push consumer."""
        info = await self.consumers.info(stream, consumer)
        return await PushConsumer.bind(self._client, info, callback=callback)

    def ordered_consumer(self, stream: str, **config: Unpack[ConsumerSettings]) -> OrderedConsumer:
        """Read a stream in order and without gaps; the consumer is created again as needed."""
        return OrderedConsumer(self._api, stream, config)

    async def _send(self, message: Outgoing) -> PubAck:
        future: asyncio.Future[PubAck] = self._loop.create_future()
        await self._hand_over(*message, future)
        return await future

    async def _hand_over_safely(self, message: Outgoing) -> asyncio.Future[PubAck]:
        """Send one message of a batch; if it cannot be sent, the others still are."""
        future: asyncio.Future[PubAck] = self._loop.create_future()
        try:
            await self._hand_over(*message, future)
        except PenstockError as error:
            future.set_exception(error)
        return future

    async def _hand_over(
        self,
        subject: str,
        payload: bytes,
        headers: Headers | None,
        message_id: str | None,
        expect: Expect | None,
        sink: Sink,
    ) -> None:
        block = b""
        if headers is not None or message_id is not None or expect is not None:
            block = publish_headers(headers, message_id, expect)
        window = self._window or self._open_window()
        if window.full:
            await window.room()
        if window.send(self._client.encode_subject(subject), payload, block, sink):
            await self._client.make_room()

    def _open_window(self) -> PublishWindow:
        self._window = PublishWindow(
            self._client,
            messages_max=self.options.window_messages_max,
            ack_timeout_s=self.options.ack_timeout_s,
        )
        return self._window


def publish_headers(
    headers: Headers | None, message_id: str | None, expect: Expect | None
) -> bytes:
    """Return the header block of a publish."""
    pairs = list(header_pairs(headers)) if headers is not None else []
    if message_id is not None:
        pairs.append(("Nats-Msg-Id", message_id))
    if expect is not None:
        pairs.extend(expect.pairs())
    return encode_headers(pairs)
