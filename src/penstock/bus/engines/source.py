"""
The durable consumer of one stream, read by pulling.

One request for messages stands at a time, for a short while: messages arrive as they
are stored, and many at a time when there are many.

**Order across a break.** After a restart or a lost connection the server still
waits for acks of messages that we do not have: it would send newer ones first and
those only after their ack wait. So `recover` comes before anything new: it tells
the server to send all of them now, and ends when the server waits for nothing
that is not here. A message that comes again although it is here, or was settled
already, is recognised by its sequence and never handed out twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Collection
from itertools import islice
from time import monotonic
from typing import Any

from penstock.bus.engine import Delivery, Headers
from penstock.bus.engines.layout import topic_of
from penstock.bus.natsconfig import ConsumerConfig
from penstock.client import Client, JetStream
from penstock.client.status import Outcome, read_status, unfilled
from penstock.errors import ClientError, JetStreamError
from penstock.wire import Op

logger = logging.getLogger("penstock.bus")

SETTLED_REMEMBERED_MAX = 131_072
"""Sequences remembered as settled: more than a server forgets when it is killed."""

RECALLED_MAX = 100_000
"""Sequences asked back at once; the rest come when their ack wait is over."""

TOPICS_CACHED_MAX = 4096

GRACE_S = 2.0
"""How much later than its expiry a request's end may be heard of."""

ACK_LINE = b"PUB %b 4\r\n+ACK\r\n"
NAK_LINE = b"PUB %b 4\r\n-NAK\r\n"
PROGRESS_LINE = b"PUB %b 4\r\n+WPI\r\n"


class Source:
    """One stream's durable consumer."""

    def __init__(
        self,
        client: Client,
        jetstream: JetStream,
        *,
        stream: str,
        durable: str,
        config: ConsumerConfig,
        arrived: asyncio.Event,
    ) -> None:
        self.stream = stream
        self.durable = durable
        self.is_stale = config.exclusive
        """Whether `recover` must come before anything new."""
        self.held: dict[int, Delivery] = {}
        """What was handed out and is not settled, by sequence."""
        self._client = client
        self._jetstream = jetstream
        self._config = config
        self._arrived = arrived
        self._operations: deque[Op] = deque()
        self._settled: dict[int, None] = {}
        self._topics: dict[bytes, str] = {}
        self._has_looked_around = False
        self._requested = 0
        self._requests = 0
        self._asked_s = 0.0
        self._not_before_s = 0.0
        prefix = jetstream.options.prefix
        self._next_subject = f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{durable}".encode()
        self._inbox = f"{client.new_inbox()}.".encode()
        self._interest = client.listen((self._inbox + b"*").decode(), self._receive)
        client.connection.watchers.append(self)

    def close(self) -> None:
        """Leave the inbox."""
        self._client.unlisten(self._interest)
        self._client.connection.watchers.remove(self)

    def ask(self, messages_max: int) -> None:
        """Ask for messages, unless an earlier request still stands."""
        # Two requests at once would be dealt to in turn, and what is dealt to one may
        # overtake what is dealt to the other.
        now_s = monotonic()
        if self._requested and now_s - self._asked_s < self._config.fetch_wait_s + GRACE_S:
            return
        if now_s >= self._not_before_s and self._client.connected:
            self._requested = 0
            self._request(min(messages_max, self._config.fetch_messages))

    def take(self) -> list[Delivery]:
        """Return what has arrived and was not here before."""
        operations, self._operations = self._operations, deque()
        held, settled, topics = self.held, self._settled, self._topics
        deliveries = []
        for operation in operations:
            _, subject, _, reply, header_bytes, payload = operation
            tokens = reply.split(b".")
            # `$JS.ACK.stream.consumer…`, or with a domain and an account before the stream.
            sequence = int(tokens[5 if len(tokens) == 9 else 7])
            if sequence in held or sequence in settled:
                self._came_again(sequence, reply)
                continue
            block = b""
            if header_bytes:
                block, payload = payload[:header_bytes], payload[header_bytes:]
            topic = topics.get(subject) or self._topic(subject)
            delivery = Delivery(topic, payload, block, sequence, self, reply)
            held[sequence] = delivery
            deliveries.append(delivery)
        return deliveries

    async def recover(self) -> list[Delivery]:
        """Return what earlier sessions left unsettled, in order, before anything new comes."""
        deadline_s = monotonic() + self._config.ack_wait_s + GRACE_S
        found = self.take()
        while (missing := await self._recall()) > 0:
            if monotonic() > deadline_s:
                logger.warning("! %d messages of `%s` did not come back", missing, self.stream)
                break
            self._request(missing)
            await self._settle_down()
            found += self.take()
        if not self._has_looked_around:
            await self._look_around()
        self.is_stale = False
        found.sort(key=_sequence)
        return found

    def settle(self, deliveries: Collection[Delivery]) -> None:
        """Ack messages."""
        held, settled = self.held, self._settled
        for delivery in deliveries:
            held.pop(delivery.sequence, None)
            settled[delivery.sequence] = None
        self._send([ACK_LINE % delivery.handle for delivery in deliveries])
        if len(settled) > SETTLED_REMEMBERED_MAX:
            for sequence in list(islice(settled, len(settled) - SETTLED_REMEMBERED_MAX // 2)):
                del settled[sequence]

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Have messages delivered again, in order."""
        lines = []
        for delivery in sorted(deliveries, key=_sequence):
            self.held.pop(delivery.sequence, None)
            lines.append(NAK_LINE % delivery.handle)
        self._send(lines)

    def extend(self, deliveries: Collection[Delivery]) -> None:
        """Restart the ack wait of messages."""
        self._send([PROGRESS_LINE % delivery.handle for delivery in deliveries])

    async def info(self) -> dict[str, Any]:
        """Return the consumer's state."""
        return await self._jetstream.consumers.info(self.stream, self.durable)

    def timestamp_ns(self, handle: bytes) -> int:
        """Return when a message was stored."""
        tokens = handle.split(b".")
        return int(tokens[7 if len(tokens) == 9 else 9])

    def deliveries(self, handle: bytes) -> int:
        """Return how often a message was delivered, this time included."""
        tokens = handle.split(b".")
        return int(tokens[4 if len(tokens) == 9 else 6])

    def headers(self, handle: bytes) -> Headers:
        """Return no headers: NATS has them in the block, or there are none."""
        return []

    def disconnected(self, error: Exception) -> None:
        """The server forgot our requests, and what it sent may be lost."""
        self._requested = 0
        self.is_stale = self._config.exclusive
        self._arrived.set()

    def reconnected(self) -> None:
        """Have the fetcher look."""
        self._not_before_s = 0.0
        self._arrived.set()

    def closed(self, error: Exception) -> None:
        """Nothing will come any more."""
        self._arrived.set()

    def _receive(self, operations: list[Op]) -> None:
        # A message has a reply subject to ack to; a line about a request has none.
        messages = [operation for operation in operations if operation[3]]
        self._operations.extend(messages)
        self._requested = max(0, self._requested - len(messages))
        for operation in operations:
            if not operation[3]:
                self._read_status(operation)
        self._arrived.set()

    def _read_status(self, operation: Op) -> None:
        outcome, error = read_status(operation)
        if outcome is Outcome.OVER:
            self._requested = max(0, self._requested - unfilled(operation))
            return
        if outcome is Outcome.ALIVE:
            return
        # An election, or the consumer is gone: ask again, but not at once.
        self._requested = 0
        self._not_before_s = monotonic() + self._config.fetch_wait_s
        logger.info("= `%s` on `%s` answers: %s", self.durable, self.stream, error)

    def _request(self, messages: int) -> None:
        body = {"batch": messages, "expires": round(self._config.fetch_wait_s * 1e9)}
        self._requested += messages
        self._requests += 1
        self._asked_s = monotonic()
        reply = self._inbox + b"%d" % self._requests
        self._client.send_nowait(self._next_subject, json.dumps(body).encode(), reply, b"")

    def _came_again(self, sequence: int, reply: bytes) -> None:
        """Take note of a message that is here, or was."""
        known = self.held.get(sequence)
        if known is not None:
            known.handle = reply
        else:
            self._send([ACK_LINE % reply])

    def _topic(self, subject: bytes) -> str:
        """Decode a subject once; later its topic is found in a cache."""
        if len(self._topics) >= TOPICS_CACHED_MAX:
            self._topics.clear()
        topic = self._topics[subject] = topic_of(subject.decode())
        return topic

    async def _recall(self) -> int:
        """Have all that is not here sent again, now; return how much that is."""
        try:
            info = await self.info()
        except (ClientError, JetStreamError) as error:
            logger.info("= `%s` cannot be asked yet: %s", self.stream, error)
            await asyncio.sleep(self._config.fetch_wait_s)
            return 1
        floor = info["ack_floor"]["stream_seq"]
        last = info["delivered"]["stream_seq"]
        known = sum(1 for sequence in self.held if floor < sequence <= last)
        missing: int = info["num_ack_pending"] - known
        if missing > 0:
            self._answer_for(floor, last, info["delivered"]["consumer_seq"])
        return missing

    def _answer_for(self, floor: int, last: int, consumer_sequence: int) -> None:
        """Refuse what we do not have, ack what we are done with."""
        # A server finds the message by its stream sequence; of the rest of the subject
        # it wants only a consumer sequence that it has given out.
        lines = []
        for sequence in range(floor + 1, min(last, floor + RECALLED_MAX) + 1):
            if sequence not in self.held:
                line = ACK_LINE if sequence in self._settled else NAK_LINE
                subject = f"{self.stream}.{self.durable}.1.{sequence}.{consumer_sequence}.0.0"
                lines.append(line % f"$JS.ACK.{subject}".encode())
        self._send(lines)

    async def _settle_down(self) -> None:
        """Return once what was asked for has come, or will not."""
        deadline_s = monotonic() + self._config.fetch_wait_s + GRACE_S
        while self._requested and self._client.connected and monotonic() < deadline_s:
            self._arrived.clear()
            try:
                async with asyncio.timeout(self._config.fetch_wait_s):
                    await self._arrived.wait()
            except TimeoutError:
                continue
        self._requested = 0

    async def _look_around(self) -> None:
        """Warn if another process reads for this service: then nobody can keep the order."""
        self._has_looked_around = True
        for _ in range(2):
            try:
                if not (await self.info()).get("num_waiting", 0):
                    return
            except (ClientError, JetStreamError):
                return
            # A process that died a moment ago may have left a request behind.
            await asyncio.sleep(2 * self._config.fetch_wait_s)
        logger.warning(
            "! another process reads `%s` as `%s`, so the order of a key cannot be kept; hint: "
            "one process a service, or `exclusive: false`",
            self.stream,
            self.durable,
        )

    def _send(self, lines: list[bytes]) -> None:
        if lines:
            self._client.connection.outbox.add(b"".join(lines))


_sequence: Callable[[Delivery], int] = lambda delivery: delivery.sequence  # noqa: E731
