"""The loads of the event bus: each opens a bus, works, and returns a figure."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from statistics import median, quantiles
from typing import Any

from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig, load_config

TOPIC = "load.numbers"
AGGREGATES = 1000
PAYLOAD = {"text": "x" * 244}
"""256 bytes as JSON."""

PACED_PER_S = 1000
HANDLER_S = 0.002


@contextmanager
def without_collector() -> Iterator[None]:
    """Run the garbage collector before the load, not during it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def settings(url: str, **changes: Any) -> BusConfig:
    """
    Return the high-throughput preset on a NATS server, or embedded without a URL.

    It sends no event ids, so no header is built per message.
    """
    config = load_config({}, preset="high_throughput", environment={})
    kind: dict[str, Any] = {"type": "embedded"}
    if url:
        jetstream = config.nats.jetstream
        kind = {"type": "nats", "nats": NatsConfig(urls=(url,), jetstream=jetstream)}
    return replace(config, namespace=_name(), **(kind | changes))


def in_flight(config: BusConfig, messages_max: int) -> BusConfig:
    """Return the configuration with another limit on messages in flight, out and in."""
    jetstream = config.nats.jetstream
    consumer = replace(jetstream.consumer, max_ack_pending=messages_max)
    return replace(
        config,
        nats=replace(config.nats, jetstream=replace(jetstream, consumer=consumer)),
        publisher=replace(config.publisher, max_pending=messages_max),
    )


def events(count: int) -> list[Envelope[Any]]:
    """Return envelopes with 256 bytes of payload, of 1000 aggregates in turn."""
    return [
        Envelope(aggregate_id=f"a{number % AGGREGATES}", event_type="load", payload=PAYLOAD)
        for number in range(count)
    ]


class Counter:
    """An empty handler that knows when all events have arrived."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = asyncio.Event()

    async def __call__(self, envelope: Envelope[Any]) -> None:
        """Handle an event by doing nothing."""
        self._left -= 1
        if not self._left:
            self.done.set()


async def publish(config: BusConfig, count: int) -> float:
    """Return events per second, from the first call to the last ack."""
    async with _bus(config) as bus:
        batch = events(count)
        with without_collector():
            started_s = time.perf_counter()
            for envelope in batch:
                await bus.publish_envelope(TOPIC, envelope)
            await bus.flush()
            return count / (time.perf_counter() - started_s)


async def end_to_end(config: BusConfig, count: int) -> float:
    """Return events per second, from the first call to the last ack of a handled event."""
    async with _bus(config) as bus:
        counter = Counter(count)
        await bus.subscribe_envelope(TOPIC, counter)
        batch = events(count)
        with without_collector():
            started_s = time.perf_counter()
            for envelope in batch:
                await bus.publish_envelope(TOPIC, envelope)
            await counter.done.wait()
            await bus.drain()
            await bus.engine.flush()
            return count / (time.perf_counter() - started_s)


async def hand_over(config: BusConfig, count: int) -> float:
    """Return the median time of one `publish_envelope` in microseconds."""
    async with _bus(config) as bus:
        times_ns = []
        for envelope in events(count):
            started_ns = time.perf_counter_ns()
            await bus.publish_envelope(TOPIC, envelope)
            times_ns.append(time.perf_counter_ns() - started_ns)
        await bus.flush()
        return median(times_ns) / 1000


async def latency(config: BusConfig, count: int) -> tuple[float, float]:
    """
    Return p50 and p99 in milliseconds from the call to the handler, at 1000 events per
    second.
    """
    async with _bus(config) as bus:
        times_ns: list[int] = []
        counter = Counter(count)

        async def handle(envelope: Envelope[Any]) -> None:
            times_ns.append(time.perf_counter_ns() - envelope.payload["at"])
            await counter(envelope)

        await bus.subscribe_envelope(TOPIC, handle)
        started_s = time.perf_counter()
        for number in range(count):
            wait_s = started_s + number / PACED_PER_S - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            payload = PAYLOAD | {"at": time.perf_counter_ns()}
            envelope = Envelope(aggregate_id=f"a{number}", event_type="load", payload=payload)
            await bus.publish_envelope(TOPIC, envelope)
        await counter.done.wait()
        hundredths = quantiles(times_ns, n=100)
        return hundredths[49] / 1e6, hundredths[98] / 1e6


async def lanes(config: BusConfig, count: int, *, lanes: int) -> float:
    """Return events per second of a handler that waits two milliseconds."""
    config = replace(config, subscriber=replace(config.subscriber, lanes=lanes))
    async with _bus(config) as bus:
        await bus.publish_envelope_batch(TOPIC, events(count))
        counter = Counter(count)

        async def handle(envelope: Envelope[Any]) -> None:
            await asyncio.sleep(HANDLER_S)
            await counter(envelope)

        started_s = time.perf_counter()
        await bus.subscribe_envelope(TOPIC, handle)
        await counter.done.wait()
        return count / (time.perf_counter() - started_s)


async def leaks(config: BusConfig, count: int) -> int:
    """Return the number of tasks, threads and open files left after closing."""
    await end_to_end(config, 10)  # things made once per process are not leaks
    before = _resources()
    await end_to_end(config, count)
    return max(0, _resources() - before)


@asynccontextmanager
async def _bus(config: BusConfig) -> AsyncIterator[EventBus]:
    async with EventBus(replace(config, namespace=_name())) as bus:
        await bus.configure_topic(TOPIC)
        yield bus


def _resources() -> int:
    files = len(os.listdir("/proc/self/fd"))
    return len(asyncio.all_tasks()) + threading.active_count() + files


def _name() -> str:
    return f"bench-{time.monotonic_ns()}"
