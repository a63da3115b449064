"""
An order service: typed handlers, order by customer, a retry, a dead letter, a request.

Run it with `python examples/order_service.py`; it brings its own server.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from penstock.bus import Delivery, Envelope, EventBus, SubscriberConfig
from penstock.bus.deadletters import CAUSE


@dataclass
class Order:
    """What a customer wants."""

    number: int
    amount: int


async def main() -> list[str]:
    """Take orders of two customers; return what happened, customer by customer."""
    bus = EventBus.open(
        "embedded:", service="orders", subscriber=SubscriberConfig(attempts_max=3, backoff_s=0.01)
    )
    story: list[str] = []
    totals: dict[str, int] = {}
    failed_once: set[int] = set()
    finished = asyncio.Event()

    @bus.on("orders.placed")
    async def place(order: Order, envelope: Envelope[Order]) -> None:
        if order.amount < 0:
            raise ValueError(f"order {order.number} has a negative amount")
        if order.number == 2 and order.number not in failed_once:
            failed_once.add(order.number)
            raise ConnectionError("the warehouse does not answer")
        totals[envelope.aggregate_id] = totals.get(envelope.aggregate_id, 0) + order.amount
        story.append(f"{envelope.aggregate_id} placed {order.number}")
        if len(story) == 6:
            finished.set()

    @bus.on("dead-letters.orders.>")
    async def bury(letter: Delivery) -> None:
        story.append(f"dead: {letter.header(CAUSE)}")
        if len(story) == 6:
            finished.set()

    async with bus:

        async def total_of(request: Any) -> int:
            return totals.get(request["customer"], 0)

        bus.respond("orders.total", total_of)
        for number, (customer, amount) in enumerate(
            [("ann", 10), ("bob", 20), ("ann", 30), ("bob", -1), ("ann", 50), ("bob", 60)]
        ):
            event = Envelope(
                aggregate_id=customer, event_type="placed", payload=Order(number, amount)
            )
            await bus.publish_envelope("orders.placed", event)
        await asyncio.wait_for(finished.wait(), 10)
        story.append(f"ann spent {await bus.request('orders.total', {'customer': 'ann'})}")
    return story


if __name__ == "__main__":
    print("\n".join(asyncio.run(main())))
