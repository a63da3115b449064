"""
The bus without `await`, for scripts, notebooks and threads.

    with SyncEventBus("nats://127.0.0.1:4222") as bus:
        bus.publish_envelope("orders.created", Envelope(…))

The bus itself runs on an event loop on a thread of its own, so that acks come,
handlers run and the connection stays up while the script does something else.
Handlers that are plain functions run on threads, as they always do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, Unpack

from penstock.bus.bus import EventBus, Health
from penstock.bus.config.bus import BusConfig, BusSettings, TopicOptions, TopicSettings
from penstock.bus.engine import Delivery, Receipt
from penstock.bus.events.codec import Upcaster
from penstock.bus.events.envelope import Envelope
from penstock.bus.handlers import H, Handler, Key, Subscription
from penstock.bus.operate.backlog import Backlog
from penstock.bus.operate.metrics import Metrics
from penstock.bus.topics.topics import TopicReport
from penstock.errors import BusClosed

T = TypeVar("T")


class SyncEventBus:
    """An `EventBus` whose methods return when they are done. Safe to use from any thread."""

    def __init__(
        self,
        source: str | Path | Mapping[str, Any] | BusConfig | None = None,
        *,
        preset: str = "",
        **settings: Unpack[BusSettings],
    ) -> None:
        self._bus = EventBus.open(source, preset=preset, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> SyncEventBus:
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="penstock-bus", daemon=True
        )
        self._thread.start()
        try:
            self._run(self._bus.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on(
        self, pattern: str, *, key: Key | None = None, timeout_s: float | None = None
    ) -> Callable[[H], H]:
        """Register a handler, before the bus opens."""
        return self._bus.on(pattern, key=key, timeout_s=timeout_s)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str = "",
        headers: Iterable[tuple[str, str]] | None = None,
        message_id: str = "",
        timeout_s: float | None = None,
    ) -> Receipt | None:
        """Publish bytes as they are and wait for the ack."""
        return self._run(
            self._bus.publish(
                topic, payload, key=key, headers=headers, message_id=message_id, timeout_s=timeout_s
            )
        )

    def publish_envelope(
        self, topic: str, envelope: Envelope[Any], *, timeout_s: float | None = None
    ) -> Receipt:
        """Publish an event and return once it is stored."""
        return self._run(self._bus.publish_envelope_sync(topic, envelope, timeout_s=timeout_s))

    def publish_envelope_batch(
        self, topic: str, envelopes: Iterable[Envelope[Any]], *, timeout_s: float | None = None
    ) -> list[Receipt]:
        """Publish all, wait for every ack; raise `BatchFailed` that lists each failure."""
        return self._run(self._bus.publish_envelope_batch(topic, envelopes, timeout_s=timeout_s))

    def subscribe(
        self,
        pattern: str,
        handler: Handler,
        *,
        key: Key | None = None,
        timeout_s: float | None = None,
    ) -> Subscription:
        """Call `handler` with the bytes of every message."""
        return self._run(self._bus.subscribe(pattern, handler, key=key, timeout_s=timeout_s))

    def subscribe_envelope(
        self, pattern: str, handler: Handler, *, timeout_s: float | None = None
    ) -> Subscription:
        """Call `handler` with every event, as the type its annotation names."""
        return self._run(self._bus.subscribe_envelope(pattern, handler, timeout_s=timeout_s))

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop calling a handler."""
        self._run(self._bus.unsubscribe(subscription))

    def configure_topic(
        self, topic: str, options: TopicOptions | None = None, **settings: Unpack[TopicSettings]
    ) -> TopicReport:
        """Declare a topic and apply the topic strategy to it."""
        return self._run(self._bus.configure_topic(topic, options, **settings))

    def check_topic(self, topic: str, options: TopicOptions | None = None) -> TopicReport:
        """Compare a topic with the broker's, and change nothing."""
        return self._run(self._bus.check_topic(topic, options))

    def request(self, topic: str, payload: Any, *, timeout_s: float = 5.0) -> Any:
        """Send a request to the responder of `topic`; return its reply."""
        return self._run(self._bus.request(topic, payload, timeout_s=timeout_s))

    def replay(
        self,
        topic: str,
        *,
        sequence: int | None = None,
        time: datetime | None = None,
        key: str | None = None,
    ) -> Iterator[tuple[Delivery, Envelope[Any]]]:
        """Read stored events again up to now: from a sequence, a time, of one key."""
        replaying = self._bus.replay(topic, sequence=sequence, time=time, key=key)
        try:
            while (found := self._run(_next_of(replaying))) is not None:
                yield found
        finally:
            self._run(_end_of(replaying))

    def backlog(self) -> Backlog:
        """Return the number of events not yet handled, and the age of the oldest."""
        return self._run(self._bus.backlog())

    def drain(self) -> None:
        """Return once every stored event is handled, or a dead letter after its attempts."""
        self._run(self._bus.drain())

    def forget(self, pattern: str) -> None:
        """Make this service stop reading these topics, also after a restart."""
        self._run(self._bus.forget(pattern))

    def reopen(self, key: str) -> bool:
        """Try a parked or blocked key again, now; False if it is neither."""
        return self._run(_soon(lambda: self._bus.reopen(key)))

    def respond(self, topic: str, handler: Callable[[Any], Any]) -> Callable[[], None]:
        """Answer requests with the result of `handler`; return a function that stops it."""
        stop = self._run(_soon(lambda: self._bus.respond(topic, handler)))
        return lambda: self._run(_soon(stop))

    def upcaster(self, event_type: str, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """Register a function that converts a payload of `from_version` to the next version."""
        return self._bus.upcaster(event_type, from_version=from_version)

    def snapshot(self) -> Metrics:
        """Return all counters as they are now."""
        return self._bus.snapshot()

    def health(self) -> Health:
        """Return the state of the bus right now."""
        return self._bus.health()

    def close(self) -> None:
        """Finish running handlers, flush, close, and end the thread. Idempotent."""
        if self._thread is None:
            return
        try:
            self._run(self._bus.close())
        finally:
            self._stop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise BusClosed("the bus is not open; hint: `with SyncEventBus(…) as bus`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Interrupted, as by Ctrl-C: the call must not go on without its caller.
            future.cancel()
            raise

    def _stop(self) -> None:
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._thread = None
        self._loop.close()


async def _soon(function: Callable[[], T]) -> T:
    return function()


async def _next_of(replaying: Any) -> Any:
    return await anext(replaying, None)


async def _end_of(replaying: Any) -> None:
    await replaying.aclose()
