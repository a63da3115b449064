"""
The work of the EventBus scenario: from publishing an event to calling its handler.

The bus is imported where it is used, because it is an optional extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.bench.load.part import Finish, Part, now_ns
from penstock.bench.scenarios.plan import Plan
from penstock.client import connect

if TYPE_CHECKING:
    from penstock.bus import EventBus

MODULES = ("penstock.bus", "msgspec")
TOPIC = "bench"
AGGREGATES = 100
"""The number of aggregates that each publisher's events belong to, in turn."""
CLOSE_S_MAX = 2.0


async def publish(part: Part) -> None:
    """Publish this client's events asynchronously, and wait until all are stored."""
    from penstock.bus import Envelope

    plan = part.plan
    filler = "x" * plan.size_bytes
    async with _bus(plan, part.url, service=f"publisher-{part.index}") as bus:
        await part.started()
        part.begin()
        for sequence in range(plan.share(part.index)):
            envelope = Envelope(
                aggregate_id=f"{part.index}-{sequence % AGGREGATES}",
                event_type="bench",
                payload=(sequence, now_ns(), filler),
            )
            await bus.publish_envelope(TOPIC, envelope)
            part.count(1)
            part.end()
        await bus.flush()
        part.end()


async def subscribe(part: Part) -> None:
    """Handle every event of every publisher, and check the order within each aggregate."""
    plan = part.plan
    finish = Finish(part)
    following: dict[str, int] = {}

    async def handle(event: Any) -> None:
        part.begin()
        sequence, sent_ns, _ = event.payload
        if sequence != following.get(event.aggregate_id, sequence % AGGREGATES):
            part.disordered += 1
        following[event.aggregate_id] = sequence + AGGREGATES
        part.end()
        part.latency_ns.record(part.end_ns - sent_ns)
        part.count(1)
        if part.messages >= plan.messages:
            finish.reach()

    async with _bus(plan, part.url, service=f"subscriber-{part.index}") as bus:
        await bus.subscribe_envelope(TOPIC, handle)
        await part.started()
        await finish.wait()


async def prepare(plan: Plan, url: str) -> None:
    """Create the stream of the bus."""
    async with _bus(plan, url, service="prepare") as bus:
        await bus.configure_topic(TOPIC)


async def clean(plan: Plan, url: str) -> None:
    """Delete the streams of the bus."""
    async with await connect(url) as client:
        streams = client.jetstream().streams
        for name in await streams.names():
            if name.startswith(plan.stream):
                await streams.delete(name)


def _bus(plan: Plan, url: str, *, service: str) -> EventBus:
    from penstock.bus import EventBus

    return EventBus.open(
        url,
        preset="high_throughput",
        namespace=plan.stream,
        service=service,
        shutdown_timeout=CLOSE_S_MAX,
    )
