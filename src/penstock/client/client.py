"""The client: publish, subscribe, request, drain. `connect` makes one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Unpack

from penstock.client.connection.connection import Connection
from penstock.client.connection.interest import Interest
from penstock.client.connection.servers import split_urls
from penstock.client.inbox import ReplyInbox, unique_token
from penstock.client.jetstream.jetstream import JetStream, JetStreamOptions, JetStreamSettings
from penstock.client.messages import Headers, Message, check_responders, encode_headers
from penstock.client.options import ClientOptions, ClientSettings
from penstock.client.subscription import Callback, Subscription
from penstock.errors import ClientError, MessageTooLarge, RequestTimeout
from penstock.hot.wire import CRLF, Op
from penstock.protocol import subjects

SUBJECTS_CACHED_MAX = 4096
SIZE_LINES_COUNT = 4096
SIZE_LINES = [b"%d\r\n" % size for size in range(SIZE_LINES_COUNT)]
"""The end of a small publish's control line; a lookup is faster than formatting the number."""


async def connect(
    servers: str | Iterable[str] = "nats://127.0.0.1:4222", **settings: Unpack[ClientSettings]
) -> Client:
    """Connect to the first server that accepts us. `settings` are those of `ClientOptions`."""
    client = Client(ClientOptions(servers=split_urls(servers), **settings))
    await client.connection.open()
    return client


class Client:
    """One connection to a NATS server or cluster. It reconnects until it is closed."""

    def __init__(self, options: ClientOptions, connection: Connection | None = None) -> None:
        self.options = options
        self.connection = connection or Connection(options)
        self._outbox = self.connection.outbox
        self._inbox = ReplyInbox(self.connection)
        self._subscriptions: set[Subscription] = set()
        self._subjects: dict[str, bytes] = {}
        self._heads: dict[str, bytes] = {}

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a server right now."""
        return self.connection.connected.is_set() and not self.connection.closed

    @property
    def closed(self) -> bool:
        """Whether the client is closed for good."""
        return self.connection.closed

    @property
    def info(self) -> dict[str, Any]:
        """The server's latest INFO."""
        return self.connection.info

    @property
    def server(self) -> str:
        """The current or last server, as `host:port`."""
        return self.connection.server.address if self.connection.server else ""

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        headers: Headers | None = None,
    ) -> None:
        """Publish a message. Waits only when `pending_bytes_max` is reached."""
        if reply or headers is not None:
            crowded = self._publish(subject, payload, reply, headers)
        else:
            # The plain case is written out here: each call saved is a tenth of a publish.
            head = self._heads.get(subject) or self._publish_head(subject)
            size = len(payload)
            if size > self.connection.payload_bytes_max:
                self._refuse(size)
            line = SIZE_LINES[size] if size < SIZE_LINES_COUNT else b"%d\r\n" % size
            crowded = self._outbox.add(head + line + payload + CRLF)
        if crowded:
            await self._outbox.make_room()

    def publish_nowait(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        headers: Headers | None = None,
    ) -> None:
        """Publish from a plain function; raises `OutboxFull` where `publish` would wait."""
        self._outbox.check_room()
        self._publish(subject, payload, reply, headers)

    async def send(
        self, subject: bytes, payload: bytes, *, reply: bytes = b"", block: bytes = b""
    ) -> None:
        """Publish to a subject known to be valid, with an encoded header block."""
        if self.send_nowait(subject, payload, reply, block):
            await self._outbox.make_room()

    def send_nowait(self, subject: bytes, payload: bytes, reply: bytes, block: bytes) -> bool:
        """Send a publish with this turn of the loop. True: the caller should `make_room` now."""
        size = len(payload) + len(block)
        if size > self.connection.payload_bytes_max:
            self._refuse(size)
        where = b"%b %b" % (subject, reply) if reply else subject
        # Adding the pieces up is twice as fast as formatting a payload into a line.
        if block:
            line = b"HPUB %b %d %d\r\n" % (where, len(block), size)
            return self._outbox.add(line + block + payload + CRLF)
        return self._outbox.add(b"PUB %b %d\r\n" % (where, size) + payload + CRLF)

    async def make_room(self) -> None:
        """Let the loop turn, or wait until fewer bytes are unsent."""
        await self._outbox.make_room()

    async def subscribe(
        self,
        subject: str,
        *,
        queue: str = "",
        callback: Callback | None = None,
        messages_max: int = 0,
        queue_messages_max: int | None = None,
        queue_bytes_max: int | None = None,
    ) -> Subscription:
        """Subscribe. Messages go to `callback`, or wait for `async for`."""
        check_pattern(subject)
        if queue and not subjects.is_valid(queue.encode()):
            raise ClientError(f"`{queue}` is not a valid queue group name")
        subscription = Subscription(
            self,
            subject,
            queue=queue,
            callback=callback,
            messages_max=queue_messages_max or self.options.queue_messages_max,
            bytes_max=queue_bytes_max or self.options.queue_bytes_max,
        )
        self._subscriptions.add(subscription)
        if messages_max:
            await subscription.unsubscribe(messages_max=messages_max)
        return subscription

    def listen(
        self, subject: str, receive: Callable[[list[Op]], None], *, queue: str = ""
    ) -> Interest:
        """Pass raw operations to `receive`, one socket read at a time. For bulk readers."""
        check_pattern(subject)
        return self.connection.subscribe(subject.encode(), receive, queue=queue.encode())

    def unlisten(self, interest: Interest) -> None:
        """End what `listen` started."""
        self.connection.unsubscribe(interest)

    def new_inbox(self) -> str:
        """Return a subject that nobody else uses."""
        return f"{self.options.inbox_prefix}.{unique_token()}"

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: Headers | None = None,
        timeout_s: float | None = None,
    ) -> Message:
        """Publish, and return the first reply."""
        block = encode_headers(headers) if headers is not None else b""
        target = self.encode_subject(subject)
        return await self.request_at(target, payload, block=block, timeout_s=timeout_s)

    async def request_at(
        self, subject: bytes, payload: bytes, *, block: bytes = b"", timeout_s: float | None = None
    ) -> Message:
        """Request at a subject known to be valid, with an encoded header block."""
        token, reply = self._inbox.open(subject)
        try:
            await self.send(subject, payload, reply=reply, block=block)
            operation = await self._inbox.reply(
                token, timeout_s=timeout_s or self.options.request_timeout_s
            )
        except RequestTimeout as error:
            raise RequestTimeout(f"`{subject.decode()}`: {error}") from None
        finally:
            self._inbox.forget(token)
        check_responders(operation, subject)
        return Message(self, operation)

    async def flush(self, *, timeout_s: float | None = None) -> None:
        """Return once the server has processed everything sent so far."""
        timeout_s = timeout_s or self.options.request_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self.connection.flush()
        except TimeoutError:
            raise RequestTimeout(f"flush: no pong within {timeout_s} s") from None

    async def drain(self) -> None:
        """End every subscription, handle the messages received, send what is left, and close."""
        try:
            async with asyncio.timeout(self.options.drain_timeout_s):
                drains = [subscription.drain() for subscription in self._subscriptions]
                await asyncio.gather(*drains)
                await self.connection.flush()
        except TimeoutError:
            self.connection.report(ClientError("drain took longer than `drain_timeout_s`"))
        finally:
            await self.close()

    async def close(self) -> None:
        """Send what is left and close. Running callbacks are cancelled."""
        subscriptions = list(self._subscriptions)
        await self.connection.close()
        for subscription in subscriptions:
            await subscription.stop()

    def jetstream(self, **settings: Unpack[JetStreamSettings]) -> JetStream:
        """Return JetStream on this connection. `settings` are those of `JetStreamOptions`."""
        return JetStream(self, JetStreamOptions(**settings))

    def encode_subject(self, subject: str) -> bytes:
        """Check and encode a subject, and cache the result."""
        cached = self._subjects.get(subject)
        if cached is not None:
            return cached
        encoded = subject.encode()
        if not subjects.is_valid(encoded):
            raise ClientError(f"`{subject}` is not a valid subject to publish to")
        if len(self._subjects) >= SUBJECTS_CACHED_MAX:
            self._subjects.clear()
        self._subjects[subject] = encoded
        return encoded

    def forget(self, subscription: Subscription) -> None:
        """Remove a subscription that has ended."""
        self._subscriptions.discard(subscription)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _refuse(self, size: int) -> None:
        self.connection.check_open()
        raise MessageTooLarge(f"a message of {size} bytes exceeds the server's `max_payload`")

    def _publish_head(self, subject: str) -> bytes:
        if len(self._heads) >= SUBJECTS_CACHED_MAX:
            self._heads.clear()
        head = self._heads[subject] = b"PUB %b " % self.encode_subject(subject)
        return head

    def _publish(self, subject: str, payload: bytes, reply: str, headers: Headers | None) -> bool:
        target = self.encode_subject(subject)
        block = encode_headers(headers) if headers is not None else b""
        answers = self.encode_subject(reply) if reply else b""
        return self.send_nowait(target, payload, answers, block)


def check_pattern(subject: str) -> None:
    """Raise if a server would refuse a subscription to this subject."""
    if not subjects.is_valid(subject.encode()):
        raise ClientError(f"`{subject}` is not a valid subject to subscribe to")
