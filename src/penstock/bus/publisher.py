"""
Publishing: a bounded window, one place where acks and errors end, no task per message.

`publish_envelope` returns as soon as the message is handed over, and waits only
while the window is full. How it ended is told to the callbacks and the result
streams; a failure that nobody asked about is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from penstock import headers as header_block
from penstock.bus.codec import Codec
from penstock.bus.config import PublisherConfig
from penstock.bus.engine import Engine, Receipt, Settlement
from penstock.bus.envelope import Envelope
from penstock.bus.metrics import Metrics
from penstock.bus.ratelimit import RateLimit
from penstock.bus.results import PublishResult, ResultStream
from penstock.bus.topics import Topics
from penstock.errors import BatchFailed, BusClosed, DeadlineExceeded, PenstockError

logger = logging.getLogger("penstock.bus")

PublishCallback: TypeAlias = Callable[[PublishResult], None]

ID_BLOCK = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n"


class Record:
    """What is remembered of a message until it is acked."""

    __slots__ = ("envelope", "future", "payload", "streams", "topic")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        envelope: Envelope[Any] | None,
        future: asyncio.Future[bytes] | None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.envelope = envelope
        self.future = future
        """Of a publisher that waits; without one the result is told to callbacks."""
        self.streams: tuple[ResultStream, ...] = ()


class Publisher:
    """Encodes, bounds and hands over; learns from the engine how it ended."""

    def __init__(
        self,
        engine: Engine,
        topics: Topics,
        codec: Codec,
        *,
        config: PublisherConfig,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._topics = topics
        self._codec = codec
        self._config = config
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._limit = RateLimit(config.rate_per_s, burst=config.rate_burst)
        self._unacked = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._drained = asyncio.Event()
        self._callbacks: list[PublishCallback] = []
        self._streams: list[tuple[int | str | None, ResultStream]] = []
        self._is_closed = False
        engine.on_settled = self._settled

    @property
    def unacked(self) -> int:
        """How many messages wait for their ack."""
        return self._unacked

    async def publish_envelope(
        self, topic: str, envelope: Envelope[Any], *, timeout_s: float | None = None
    ) -> None:
        """Hand an event over. Waits only for room, at most `timeout_s`."""
        payload = self._codec.encode(envelope)
        record = Record(topic, payload, envelope, None)
        if timeout_s is None:
            await self._hand_over(record)
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._hand_over(record)
        except TimeoutError:
            raise DeadlineExceeded(f"`{topic}`: no room within {timeout_s} s") from None

    async def publish_envelope_sync(
        self, topic: str, envelope: Envelope[Any], *, timeout_s: float | None = None
    ) -> Receipt:
        """Publish an event and return once it is stored."""
        return await self._wait_for(self._record(topic, envelope), timeout_s)

    async def publish_envelope_batch(
        self, topic: str, envelopes: Iterable[Envelope[Any]], *, timeout_s: float | None = None
    ) -> list[Receipt]:
        """Publish all, wait for every ack; raise `BatchFailed` that lists each failure."""
        futures: list[asyncio.Future[bytes]] = []
        deadline_s = None if timeout_s is None else self._loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline_s):
                for envelope in envelopes:
                    futures.append(await self._start(topic, envelope))
                await asyncio.wait(futures) if futures else None
        except TimeoutError:
            pass
        return _receipts(futures, topic, timeout_s)

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        headers: Iterable[tuple[str, str]] | None = None,
        message_id: str = "",
        timeout_s: float | None = None,
    ) -> Receipt | None:
        """Publish bytes as they are and wait for the ack; on an ephemeral topic there is none."""
        record = Record(topic, payload, None, self._loop.create_future())
        pairs = list(headers or ())
        if message_id:
            pairs.append(("Nats-Msg-Id", message_id))
        block = header_block.encode(pairs) if pairs else b""
        receipt = await self._wait_for(record, timeout_s, block)
        return receipt if receipt.sequence else None

    def on_published(self, callback: PublishCallback) -> PublishCallback:
        """Have `callback` told how every asynchronous publish ended."""
        self._callbacks.append(callback)
        return callback

    def results(self, tenant_id: int | str | None = None) -> ResultStream:
        """Return the results from now on, of one tenant or of all. Close it when done."""
        stream = ResultStream(results_max=self._config.results_max, closed=self._forget_stream)
        self._streams.append((tenant_id, stream))
        return stream

    async def drain(self) -> None:
        """Return once every message so far is acked or has failed."""
        while self._unacked:
            self._drained.clear()
            await self._drained.wait()

    def close(self) -> None:
        """Refuse what comes later, and end the result streams."""
        self._is_closed = True
        for _, stream in list(self._streams):
            stream.close()

    async def _start(self, topic: str, envelope: Envelope[Any]) -> asyncio.Future[bytes]:
        """Hand one of a batch over; one that cannot be must not stop the others."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        try:
            record = Record(topic, self._codec.encode(envelope), envelope, future)
            await self._hand_over(record)
        except PenstockError as error:
            if not future.done():
                future.set_exception(error)
        return future

    def _record(self, topic: str, envelope: Envelope[Any]) -> Record:
        return Record(topic, self._codec.encode(envelope), envelope, self._loop.create_future())

    async def _wait_for(
        self, record: Record, timeout_s: float | None, block: bytes = b""
    ) -> Receipt:
        assert record.future is not None
        try:
            async with asyncio.timeout(timeout_s):
                await self._hand_over(record, block)
                return _receipt(await record.future)
        except TimeoutError:
            raise DeadlineExceeded(f"`{record.topic}`: not stored within {timeout_s} s") from None

    async def _hand_over(self, record: Record, block: bytes = b"") -> None:
        target = self._topics.target(record.topic) or await self._topics.prepare(record.topic)
        if self._limit.rate_per_s:
            await self._limit.take()
        if self._streams and record.future is None:
            await self._reserve(record)
        while self._unacked >= self._config.window_messages_max:
            await self._room()
        if self._is_closed:
            raise BusClosed("the bus is closed")
        envelope = record.envelope
        if envelope is not None and self._config.deduplicate:
            block = ID_BLOCK % envelope.event_id.encode()
        self._metrics.published_total += 1
        if target.live:
            crowded = self._engine.send_live(target.address, record.payload, block)
            self._conclude(record, b"", None)
        else:
            crowded = self._engine.send(target.address, record.payload, block, record)
            self._unacked += 1
        if crowded:
            await self._engine.make_room()

    async def _reserve(self, record: Record) -> None:
        """Take a place in every result stream that will want to know."""
        tenant_id = record.envelope.tenant_id if record.envelope is not None else None
        streams = [
            stream for wanted, stream in self._streams if wanted is None or wanted == tenant_id
        ]
        for stream in streams:
            await stream.room()
            stream.reserve()
        record.streams = tuple(streams)

    async def _room(self) -> None:
        future = self._loop.create_future()
        self._waiting.append(future)
        await future

    def _settled(self, settlements: list[Settlement]) -> None:
        """The one place where acks and errors end."""
        self._unacked -= len(settlements)
        for record, ack, error in settlements:
            self._conclude(record, ack, error)
        room = self._config.window_messages_max - self._unacked
        while self._waiting and room > 0:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                room -= 1
        if not self._unacked:
            self._drained.set()

    def _conclude(self, record: Record, ack: bytes, error: Exception | None) -> None:
        if error is None:
            self._metrics.publish_acked_total += 1
        else:
            self._metrics.publish_failed_total += 1
        if record.future is not None:
            _resolve(record.future, ack, error)
        elif error is not None or self._callbacks or record.streams:
            self._tell(record, error)

    def _tell(self, record: Record, error: Exception | None) -> None:
        result = PublishResult(record.topic, record.payload, record.envelope, error)
        if error is not None:
            logger.error("! publishing %s to `%s`: %s", result.event_id, record.topic, error)
        for stream in record.streams:
            stream.put(result)
        for callback in self._callbacks:
            try:
                callback(result)
            except Exception:
                logger.exception("! a publish callback failed")

    def _forget_stream(self, stream: ResultStream) -> None:
        self._streams = [pair for pair in self._streams if pair[1] is not stream]


def _resolve(future: asyncio.Future[bytes], ack: bytes, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(ack)
    else:
        future.set_exception(error)


def _receipt(ack: bytes) -> Receipt:
    if not ack:
        return Receipt(0, False)
    fields = msgspec.json.decode(ack)
    return Receipt(fields["seq"], fields.get("duplicate", False))


def _receipts(
    futures: list[asyncio.Future[bytes]], topic: str, timeout_s: float | None
) -> list[Receipt]:
    """Return all receipts, or raise one error that names each message without one."""
    receipts: list[Receipt | None] = []
    failures: dict[int, Exception] = {}
    for index, future in enumerate(futures):
        error: BaseException | None
        if not future.done():
            future.cancel()
            error = DeadlineExceeded(f"`{topic}`: not stored within {timeout_s} s")
        else:
            error = future.exception()
        if isinstance(error, Exception):
            failures[index] = error
        receipts.append(None if error is not None else _receipt(future.result()))
    if failures:
        raise BatchFailed(failures, receipts)
    return [receipt for receipt in receipts if receipt is not None]
