"""
Publishes on their way: handed to librdkafka, and not yet acked.

Librdkafka sends, retries and keeps the order; what is left to do is to ask it how
things ended. That happens in one place, on the loop, a few times a millisecond apart
while something is on its way: many reports at a time, and no thread that would fight
the loop for the interpreter at every one of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.bus.engine import Headers, OnSettled, Outgoing, Settlement
from penstock.bus.engines.kafka.layout import sequence_of
from penstock.bus.engines.kafka.properties import text_of
from penstock.bus.events.envelope import Envelope
from penstock.errors import BusClosed, BusError, MessageTooLarge, RequestTimeout
from penstock.protocol import headers as header_block

POLL_S_MIN = 0.001
POLL_S_MAX = 0.005
"""How often it is asked while messages are on their way: less often if nothing comes."""
IDLE_S = 0.5
"""How often it is asked while there are none: for what it has to say about the brokers."""
TURN_MESSAGES = 256
"""Messages after which the loop should turn."""

GONE = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class KafkaWindow:
    """The messages that wait for their ack."""

    def __init__(
        self,
        producer: Producer,
        *,
        ack_timeout_s: float,
        on_settled: OnSettled,
        on_alive: Callable[[], None],
    ) -> None:
        self._producer = producer
        self._produce = producer.produce
        self._ack_timeout_s = ack_timeout_s
        self._on_settled = on_settled
        self._on_alive = on_alive
        self._loop = asyncio.get_running_loop()
        self._unacked = 0
        self._sent = 0
        self._settled: list[Settlement] = []
        self._waiting: deque[Outgoing] = deque()
        """Messages that librdkafka has no room for yet, in order."""
        self._poll_s = POLL_S_MIN
        self._timer = self._loop.call_later(IDLE_S, self._tick)
        self._is_soon = False
        """Whether the timer is set for messages on their way."""

    def send(self, message: Outgoing) -> bool:
        """Hand a message over. True: better make room now."""
        # What it refuses is told like any other failure.
        if self._waiting or not self._retry(message):
            self._waiting.append(message)
        self._unacked += 1
        if not self._is_soon:
            self._ask_soon()
        self._sent += 1
        return bool(self._waiting) or self._sent % TURN_MESSAGES == 0

    async def store(self, name: str, value: bytes, *, key: bytes = b"") -> Message:
        """Store one record of the bus itself, not the publisher's; return it as stored."""
        future: asyncio.Future[Message] = self._loop.create_future()

        def delivered(error: KafkaError | None, record: Message) -> None:
            self._unacked -= 1
            if future.done():
                return
            if error is None:
                future.set_result(record)
            else:
                future.set_exception(self._error(error))

        try:
            self._produce(name, value, key, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            raise BusError(f"`{name}`: {text_of(error)}") from error
        self._unacked += 1
        self._ask_soon()
        return await future

    async def make_room(self) -> None:
        """Let the loop turn, or wait until librdkafka has taken what waits."""
        self.poll()
        await asyncio.sleep(0)
        while self._waiting:  # noqa: ASYNC110  (librdkafka tells nobody)
            await asyncio.sleep(POLL_S_MIN)

    def poll(self) -> None:
        """Collect results, report them to the publisher, and hand over waiting messages."""
        self._producer.poll(0)
        settled, self._settled = self._settled, []
        if settled:
            self._unacked -= len(settled)
            self._on_settled(settled)
        self._poll_s = POLL_S_MIN if settled else min(self._poll_s * 2, POLL_S_MAX)
        while self._waiting and self._retry(self._waiting[0]):
            self._waiting.popleft()

    def close(self) -> None:
        """Fail all waiting messages."""
        self._timer.cancel()
        self._settled += [
            Settlement(one, b"", BusClosed("the bus closed")) for one in self._waiting
        ]
        self._waiting.clear()
        self._producer.purge()
        self.poll()
        self._timer.cancel()

    def _tick(self) -> None:
        self._is_soon = False
        self.poll()
        if self._unacked:
            self._ask_soon()
        else:
            self._timer.cancel()
            self._timer = self._loop.call_later(IDLE_S, self._tick)

    def _ask_soon(self) -> None:
        if not self._is_soon:
            self._is_soon = True
            self._timer.cancel()
            self._timer = self._loop.call_later(self._poll_s, self._tick)

    def _put(self, message: Outgoing) -> bool:
        """Hand a message to librdkafka; False if it has no room."""
        envelope = message.envelope
        headers = [] if envelope is None else envelope_headers(envelope)
        if message.block:
            headers += header_block.decode(message.block)
        try:
            self._produce(
                message.target.decode(),
                message.payload,
                message.key or None if envelope is None else envelope.aggregate_id,
                on_delivery=partial(self._delivered, message),
                headers=headers,  # type: ignore[arg-type]
            )
        except BufferError:
            return False
        except KafkaException as error:
            text = f"`{message.topic}`: {text_of(error)}"
            if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise MessageTooLarge(text) from error
            raise BusError(text) from error
        return True

    def _retry(self, message: Outgoing) -> bool:
        try:
            return self._put(message)
        except (BusError, MessageTooLarge) as error:
            self._settled.append(Settlement(message, b"", error))
            return True

    def _delivered(self, message: Outgoing, error: KafkaError | None, record: Message) -> None:
        if error is not None:
            self._settled.append(Settlement(message, b"", self._error(error)))
            return
        if record.offset() is None:
            # As the broker has later ones of this producer, it takes this one for stored before.
            unknown = BusError("Kafka took it for one that is stored, and does not say where")
            self._settled.append(Settlement(message, b"", unknown))
            return
        ack = b""
        if message.future is not None:
            # In JetStream's words, which is what a receipt is read from.
            sequence = sequence_of(record.partition(), record.offset())  # type: ignore[arg-type]
            ack = b'{"seq":%d}' % sequence
        if not self._settled:
            self._on_alive()
        self._settled.append(Settlement(message, ack, None))

    def _error(self, error: KafkaError) -> Exception:
        if error.code() == KafkaError._MSG_TIMED_OUT:
            return RequestTimeout(f"no ack within {self._ack_timeout_s} s")
        if error.code() in GONE:
            return BusClosed("the bus closed before the ack came")
        return BusError(f"Kafka answers: {error.str()}")


def envelope_headers(envelope: Envelope[object]) -> Headers:
    """Return the fields of an envelope as headers, for readers that do not open it."""
    headers = [
        ("X-Event-ID", envelope.event_id),
        ("X-Aggregate-ID", envelope.aggregate_id),
        ("X-Event-Type", envelope.event_type),
        ("X-Event-Version", str(envelope.event_version)),
    ]
    if envelope.trace_id is not None:
        headers.append(("X-Trace-ID", envelope.trace_id))
    if envelope.correlation_id is not None:
        headers.append(("X-Correlation-ID", envelope.correlation_id))
    if envelope.tenant_id is not None:
        headers.append(("X-Tenant-ID", str(envelope.tenant_id)))
    return headers
