"""
Replaying stored events: a part of a topic, into a handler or into another topic.

    replay = Replay(bus, "orders.created", time=yesterday, key="order-7")
    await replay.into_topic("orders.repaired")

A replay ends with the last event stored when it began. It settles nothing: the durable
consumer of the service is not affected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from math import inf
from typing import Any

from penstock.bus.bus import EventBus
from penstock.bus.engine import Delivery
from penstock.bus.events.envelope import Envelope
from penstock.bus.events.names import check_moment, check_topic
from penstock.bus.handlers import Handler, Subscription
from penstock.bus.keyed import in_order_by_key
from penstock.bus.ratelimit import RateLimit

CHUNK_MESSAGES = 256

Stored = tuple[Delivery, Envelope[Any]]


class Replay:
    """A part of a topic: from a sequence or a time on, until a time, of a key or a type."""

    def __init__(
        self,
        bus: EventBus,
        topic: str,
        *,
        sequence: int | None = None,
        time: datetime | None = None,
        until: datetime | None = None,
        key: str | None = None,
        event_type: str | None = None,
        rate_per_s: float = 0.0,
    ) -> None:
        self._bus = bus
        self._topic = topic
        self._start: dict[str, Any] = {"sequence": sequence, "time": time, "key": key}
        check_moment("time", time)
        check_moment("until", until)
        self._until_ns = None if until is None else round(until.timestamp() * 1e9)
        self._event_type = event_type
        self._limit = RateLimit(rate_per_s, burst=1)

    async def __aiter__(self) -> AsyncIterator[Stored]:
        async for delivery, envelope in self._bus.replay(self._topic, **self._start):
            if self._until_ns is not None and delivery.timestamp_ns >= self._until_ns:
                if self._bus.features.orders_topics:
                    return
                continue
            if self._event_type in (None, envelope.event_type):
                if self._limit.rate_per_s:
                    await self._limit.take()
                yield delivery, envelope

    async def into_handler(self, handler: Handler) -> int:
        """Call a handler with every event, one after another; return how many there were."""
        count = 0
        with Threads() as threads:
            subscription = Subscription(self._topic, handler, timeout_s=inf, threads=threads.get)
            async for delivery, _ in self:
                subscription.open(delivery, self._bus.codec)
                await subscription.call(delivery.event)
                count += 1
        return count

    async def into_topic(self, topic: str) -> int:
        """
        Publish every event to another topic; return how many there were.

        Events of one aggregate keep their order. The same replay again, within the
        duplicate window of the stream, stores nothing twice.
        """
        check_topic(topic)
        count = 0
        chunk: list[Stored] = []
        async for stored in self:
            chunk.append(stored)
            if len(chunk) == CHUNK_MESSAGES:
                count += await self._publish(chunk, topic)
                chunk = []
        return count + await self._publish(chunk, topic)

    async def _publish(self, chunk: list[Stored], topic: str) -> int:
        def copy(stored: Stored) -> Any:
            delivery, envelope = stored
            # The event's own id would make the broker take the copy for the event itself.
            place = f"{delivery.source.stream}:{delivery.sequence}"
            return self._bus.publish(
                topic,
                delivery.payload,
                key=envelope.aggregate_id,
                headers=delivery.sendable_headers,
                message_id=f"replay:{place}",
            )

        done, failures = await in_order_by_key(
            chunk, key=lambda stored: stored[1].aggregate_id, act=copy
        )
        if failures:
            raise failures[0].error
        return len(done)


class Threads:
    """A pool of one thread, created if the handler is a plain function."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def get(self) -> ThreadPoolExecutor:
        """Return the pool; the first time, make it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-replay")
        return self._pool
