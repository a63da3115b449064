"""
Typed handlers: the annotation selects the handler's argument, and old versions are
upgraded.

Output:
    an Order: Order(item='book', cents=1250)
    with its event: order-1 version 2
    as bytes: {"event_id"
    a wrong payload becomes a dead letter: InvalidEnvelope
"""

import asyncio
from dataclasses import dataclass

from penstock.bus import DeadLetterBox, Envelope, EventBus

bus = EventBus.open("embedded:")
lines: asyncio.Queue[str] = asyncio.Queue()


@dataclass
class Order:
    """Version 2; version 1 had a price in whole units."""

    item: str
    cents: int


@bus.upcaster("OrderPlaced", from_version=1)
def cents_from_price(payload: dict[str, object]) -> dict[str, object]:
    return {"item": payload["item"], "cents": int(float(str(payload["price"])) * 100)}


@bus.on("orders.payload")
async def take_payload(order: Order) -> None:
    lines.put_nowait(f"an Order: {order}")


@bus.on("orders.both")
async def take_both(order: Order, event: Envelope[Order]) -> None:
    lines.put_nowait(f"with its event: {event.aggregate_id} version {event.event_version}")


@bus.on("orders.raw")
def take_bytes(data: bytes) -> None:  # a plain function runs on a thread
    loop.call_soon_threadsafe(lines.put_nowait, f"as bytes: {data[:11].decode()}")


def old_event() -> Envelope[dict[str, object]]:
    return Envelope(
        aggregate_id="order-1",
        event_type="OrderPlaced",
        event_version=1,
        payload={"item": "book", "price": 12.5},
    )


async def main() -> None:
    global loop
    loop = asyncio.get_running_loop()
    async with bus:
        for topic in ("orders.payload", "orders.both", "orders.raw"):
            await bus.publish_envelope(topic, old_event())
            print(await lines.get())
        wrong = Envelope(aggregate_id="order-2", event_type="Other", payload={"no": "order"})
        await bus.publish_envelope("orders.payload", wrong)
        async with bus.messages("dead-letters.>") as buried:
            await anext(buried)
        async for letter in DeadLetterBox(bus).find():
            print(f"a wrong payload becomes a dead letter: {letter.cause.split(':')[0]}")


asyncio.run(main())
