"""Other libraries on the same events: nats-py's plain JetStream, and FastStream."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.busloads import PAYLOAD, events
from penstock.bus.events.codec import Codec

STREAM, SUBJECT, DURABLE = "RIVALS", "rivals.numbers", "rivals"
FETCH = 500
WINDOW = 256


async def nats_py(url: str, count: int) -> tuple[float, float]:
    """Return events per second of publishing with awaited acks, and of fetching and acking."""
    import nats

    client = await nats.connect(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name=STREAM, subjects=[SUBJECT])
    codec = Codec()
    try:
        started_s = time.perf_counter()
        for envelope in events(count):
            await jetstream.publish(SUBJECT, codec.encode(envelope))
        published_s = time.perf_counter()
        subscription = await jetstream.pull_subscribe(SUBJECT, durable=DURABLE)
        fetched = 0
        while fetched < count:
            for message in await subscription.fetch(FETCH, timeout=5):
                codec.decode(message.data)
                await message.ack()
                fetched += 1
        await client.flush()
        return count / (published_s - started_s), count / (time.perf_counter() - published_s)
    finally:
        await jetstream.delete_stream(STREAM)
        await client.close()


async def faststream(url: str, count: int) -> float:
    """Return events per second from the first publish to the last handled event, 256 at once."""
    from faststream.nats import JStream, NatsBroker, PullSub

    broker = NatsBroker(url, logger=None)
    stream = JStream(name=STREAM, subjects=[SUBJECT])
    left, done = count, asyncio.Event()

    @broker.subscriber(
        SUBJECT, stream=stream, durable=DURABLE, pull_sub=PullSub(batch_size=FETCH), max_workers=64
    )
    async def handle(body: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async with broker:
        await broker.start()
        try:
            started_s = time.perf_counter()
            await _in_windows(
                count, lambda: broker.publish({"payload": PAYLOAD}, SUBJECT, stream=STREAM)
            )
            await done.wait()
            return count / (time.perf_counter() - started_s)
        finally:
            jetstream = broker._connection.jetstream()  # type: ignore[union-attr]
            await jetstream.delete_stream(STREAM)


async def _in_windows(count: int, work: Callable[[], Awaitable[Any]]) -> None:
    for start in range(0, count, WINDOW):
        await asyncio.gather(*(work() for _ in range(min(WINDOW, count - start))))
