"""
Publishing: a bounded window, one place where acks and errors end, no task per message.

`publish_envelope` returns as soon as the message is handed over, and waits only
while the window is full. The callbacks and the result streams get the result; a
failure without either is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from penstock.bus.config.bus import PublisherConfig
from penstock.bus.engine import Engine, Outgoing, Receipt, Settlement
from penstock.bus.events.codec import Codec
from penstock.bus.events.envelope import Envelope
from penstock.bus.operate.failures import ENDINGS
from penstock.bus.operate.metrics import Metrics
from penstock.bus.ratelimit import RateLimit
from penstock.bus.results import PublishResult, ResultStream
from penstock.bus.topics.topics import Topics, id_block, message_id_on
from penstock.errors import BatchFailed, BusClosed, DeadlineExceeded, PenstockError
from penstock.protocol import headers as header_block

logger = logging.getLogger("penstock.bus")

PublishCallback: TypeAlias = Callable[[PublishResult], None]


class Publisher:
    """Encodes messages, bounds them, hands them over, and gets their results."""

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
        self._encode = codec.encode
        self._metrics = metrics
        self._window_max = config.max_pending
        self._results_max = config.max_results
        self._deduplicate = config.deduplicate and engine.features.deduplicates
        self._limit = RateLimit(config.rate, burst=config.rate_burst)
        self._loop = asyncio.get_running_loop()
        self._send = engine.sender()
        self._unacked = 0
        self._is_crowded = False
        """Whether the engine wants the loop to turn before the next message."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._drained = asyncio.Event()
        self._callbacks: list[PublishCallback] = []
        self._streams: list[tuple[int | str | None, ResultStream]] = []
        self._is_closed = False
        self._is_plain = not config.rate
        """Whether a publisher waits only for room in the window."""
        self._watchers: list[Callable[[Outgoing], None]] = []
        engine.on_settled = self._settled

    @property
    def unacked(self) -> int:
        """How many messages wait for their ack."""
        return self._unacked

    def publish_at_once(self, topic: str, envelope: Envelope[Any]) -> bool:
        """Hand an event over if there is nothing to wait for; return whether it was."""
        target = self._topics.targets.get(topic)
        if (
            target is None
            or not target.at_once
            or self._unacked >= self._window_max
            or self._is_crowded
            or not self._is_plain
        ):
            return False
        message = Outgoing(topic, self._encode(envelope), envelope, target.address)
        if self._deduplicate:
            message.block = target.id_block % envelope.event_id.encode()
        self._is_crowded = self._send(message)
        self._unacked += 1
        self._metrics.published_total += 1
        return True

    async def publish_envelope(
        self, topic: str, envelope: Envelope[Any], *, timeout_s: float | None = None
    ) -> None:
        """Hand an event over. Waits only for room, at most `timeout_s`."""
        message = self._outgoing(topic, envelope)
        try:
            async with asyncio.timeout(timeout_s):
                await self._hand_over(message)
        except TimeoutError:
            raise DeadlineExceeded(f"`{topic}`: no room within {timeout_s} s") from None

    async def publish_envelope_sync(
        self, topic: str, envelope: Envelope[Any], *, timeout_s: float | None = None
    ) -> Receipt:
        """Publish an event and return once it is stored."""
        return await self._wait_for(self._outgoing(topic, envelope), timeout_s)

    async def publish_envelope_batch(
        self, topic: str, envelopes: Iterable[Envelope[Any]], *, timeout_s: float | None = None
    ) -> list[Receipt]:
        """Publish all, wait for every ack; raise `BatchFailed` that lists each failure."""
        futures: list[asyncio.Future[bytes]] = []
        try:
            async with asyncio.timeout(timeout_s):
                for envelope in envelopes:
                    futures.append(await self._start(topic, envelope))
                if futures:
                    await asyncio.wait(futures)
        except TimeoutError:
            return _receipts(futures, f"`{topic}`: not stored within {timeout_s} s")
        return _receipts(futures, "")

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
        """Publish bytes as they are and wait for the ack; on an ephemeral topic there is none."""
        self._topics.check_free(topic)
        return await self.store(
            topic, payload, key=key, headers=headers, message_id=message_id, timeout_s=timeout_s
        )

    async def store(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str = "",
        headers: Iterable[tuple[str, str]] | None = None,
        message_id: str = "",
        timeout_s: float | None = None,
    ) -> Receipt | None:
        """Publish to any topic, also of dead letters."""
        message = Outgoing(topic, payload, None, b"", key)
        pairs = list(headers or ())
        if message_id:
            pairs.append(("Nats-Msg-Id", message_id_on(topic, message_id)))
        if pairs:
            message.block = header_block.encode(pairs)
        receipt = await self._wait_for(message, timeout_s)
        return receipt if receipt.sequence else None

    def on_published(self, callback: PublishCallback) -> PublishCallback:
        """Call `callback` with the result of every asynchronous publish."""
        self._callbacks.append(callback)
        return callback

    def results(self, tenant_id: int | str | None = None) -> ResultStream:
        """Return the results from now on, of one tenant or of all. Close it when done."""
        stream = ResultStream(results_max=self._results_max, closed=self._forget_stream)
        self._streams.append((tenant_id, stream))
        self._is_plain = False
        return stream

    def watch(self, watcher: Callable[[Outgoing], None]) -> None:
        """Show every message to `watcher` before it is handed over; it may change headers."""
        self._watchers.append(watcher)
        self._is_plain = False

    async def drain(self) -> None:
        """Return once every message so far is acked or has failed."""
        while self._unacked:
            self._drained.clear()
            await self._drained.wait()

    def close(self) -> None:
        """Refuse later messages, and end the result streams."""
        self._is_closed = True
        for _, stream in list(self._streams):
            stream.close()
        self._is_plain = False

    def _outgoing(self, topic: str, envelope: Envelope[Any]) -> Outgoing:
        self._topics.check_free(topic)
        message = Outgoing(topic, self._encode(envelope), envelope, b"")
        if self._deduplicate:
            message.block = id_block(topic) % envelope.event_id.encode()
        return message

    async def _start(self, topic: str, envelope: Envelope[Any]) -> asyncio.Future[bytes]:
        """Hand over one event of a batch; a failure must not stop the others."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        try:
            message = self._outgoing(topic, envelope)
            message.future = future
            await self._hand_over(message)
        except PenstockError as error:
            if not future.done():
                future.set_exception(error)
        return future

    async def _wait_for(self, message: Outgoing, timeout_s: float | None) -> Receipt:
        message.future = future = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._hand_over(message)
                return _receipt(await future)
        except TimeoutError:
            raise DeadlineExceeded(f"`{message.topic}`: not stored within {timeout_s} s") from None

    async def _hand_over(self, message: Outgoing) -> None:
        target = self._topics.targets.get(message.topic)
        if target is None:
            target = await self._topics.prepare(message.topic)
        message.target = target.address
        try:
            await self._admit(message)
            for watcher in self._watchers:
                watcher(message)
            if target.live:
                self._is_crowded = self._engine.send_live(
                    message.target, message.payload, message.block
                )
            else:
                self._is_crowded = self._send(message)
        except BaseException:
            for stream in message.streams:
                stream.release()
            raise
        self._metrics.published_total += 1
        if target.live:
            self._conclude(message, b"", None)
        else:
            self._unacked += 1

    async def _admit(self, message: Outgoing) -> None:
        """Wait for the rate, the readers of results, the window and the loop."""
        if self._limit.rate_per_s:
            await self._limit.take()
        if self._streams and message.future is None:
            await self._reserve(message)
        while self._unacked >= self._window_max:
            await self._room()
        if self._is_crowded:
            self._is_crowded = False
            await self._engine.make_room()
        if self._is_closed:
            raise BusClosed("the bus is closed")

    async def _reserve(self, message: Outgoing) -> None:
        """Reserve a place in every result stream that will get the result."""
        tenant_id = message.envelope.tenant_id if message.envelope is not None else None
        for wanted, stream in list(self._streams):
            if wanted is None or wanted == tenant_id:
                await stream.room()
                stream.reserve()
                message.streams += (stream,)

    async def _room(self) -> None:
        future = self._loop.create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            # Pass the room it may have been given to the next publisher.
            self._let_in()
            raise

    def _settled(self, settlements: list[Settlement]) -> None:
        """The one place where acks and errors end."""
        self._unacked -= len(settlements)
        is_watched = bool(self._callbacks)
        acked = 0
        for message, ack, error in settlements:
            if error is None and message.future is None and not message.streams:
                acked += 1
                if is_watched:
                    self._tell(message, None)
            else:
                self._conclude(message, ack, error)
        self._metrics.publish_acked_total += acked
        self._let_in()

    def _let_in(self) -> None:
        """Wake as many publishers as there is room for, first come, first served."""
        room = self._window_max - self._unacked
        while self._waiting and room > 0:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                room -= 1
        if not self._unacked:
            self._drained.set()

    def _conclude(self, message: Outgoing, ack: bytes, error: Exception | None) -> None:
        if error is None:
            self._metrics.publish_acked_total += 1
        else:
            self._metrics.publish_failed_total += 1
        future = message.future
        if future is None:
            self._tell(message, error)
        elif not future.done():
            if error is None:
                future.set_result(ack)
            else:
                future.set_exception(error)

    def _tell(self, message: Outgoing, error: Exception | None) -> None:
        result = PublishResult(message.topic, message.payload, message.envelope, error)
        if error is not None:
            logger.error("! publishing %s to `%s`: %s", result.event_id, message.topic, error)
        for stream in message.streams:
            stream.put(result)
        for callback in self._callbacks:
            try:
                callback(result)
            except ENDINGS:
                raise
            except BaseException:
                logger.exception("! a publish callback failed")

    def _forget_stream(self, stream: ResultStream) -> None:
        self._streams = [pair for pair in self._streams if pair[1] is not stream]
        waits = self._streams or self._limit.rate_per_s or self._is_closed
        self._is_plain = not (waits or self._watchers)


def _receipt(ack: bytes) -> Receipt:
    if not ack:
        return Receipt(0, False)
    fields = msgspec.json.decode(ack)
    return Receipt(fields["seq"], fields.get("duplicate", False))


def _receipts(futures: list[asyncio.Future[bytes]], late: str) -> list[Receipt]:
    """Return all receipts, or raise one error that names each message without one."""
    receipts: list[Receipt | None] = []
    failures: dict[int, Exception] = {}
    for index, future in enumerate(futures):
        if not future.done():
            future.cancel()
            failures[index] = DeadlineExceeded(late)
        elif isinstance(error := future.exception(), Exception):
            failures[index] = error
        receipts.append(None if index in failures else _receipt(future.result()))
    if failures:
        raise BatchFailed(failures, receipts)
    return [receipt for receipt in receipts if receipt is not None]
