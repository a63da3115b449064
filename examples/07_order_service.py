"""
An order service: typed handlers, order by customer, a retry, a dead letter, a request.

Order 2 fails at first, and is retried before any newer order of its customer. Order 3 never
succeeds, and becomes a dead letter while its customer's other orders continue.

Output:
    ann: 0 2 4
    bob: 1 5
    dead: ValueError: order 3 has a negative amount
    ann spent 90
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from penstock.bus import Delivery, Envelope, EventBus, SubscriberConfig
from penstock.bus.deadletters.deadletters import CAUSE

ORDERS = [("ann", 10), ("bob", 20), ("ann", 30), ("bob", -1), ("ann", 50), ("bob", 60)]

bus = EventBus.open(
    "embedded:", service="orders", subscriber=SubscriberConfig(max_attempts=3, backoff=0.01)
)
handled: dict[str, list["Order"]] = defaultdict(list)
causes: list[str] = []
failed_once: set[int] = set()
finished = asyncio.Event()


@dataclass
class Order:
    """The order of a customer."""

    number: int
    amount: int


@bus.on("orders.placed")
async def place(order: Order, envelope: Envelope[Order]) -> None:
    if order.amount < 0:
        raise ValueError(f"order {order.number} has a negative amount")
    if order.number == 2 and order.number not in failed_once:
        failed_once.add(order.number)
        raise ConnectionError("the warehouse does not answer")
    handled[envelope.aggregate_id].append(order)
    note_progress()


@bus.on("dead-letters.orders.>")
async def bury(letter: Delivery) -> None:
    causes.append(letter.header(CAUSE) or "")
    note_progress()


def note_progress() -> None:
    if sum(map(len, handled.values())) + len(causes) == len(ORDERS):
        finished.set()


async def total_of(request: Any) -> int:
    return sum(order.amount for order in handled[request["customer"]])


async def main() -> None:
    async with bus:
        bus.respond("orders.total", total_of)
        for number, (customer, amount) in enumerate(ORDERS):
            order = Order(number, amount)
            event = Envelope(aggregate_id=customer, event_type="placed", payload=order)
            await bus.publish_envelope("orders.placed", event)
        await asyncio.wait_for(finished.wait(), 30)
        for customer in ("ann", "bob"):
            print(f"{customer}: {' '.join(str(order.number) for order in handled[customer])}")
        print(f"dead: {causes[0]}")
        print(f"ann spent {await bus.request('orders.total', {'customer': 'ann'})}")


asyncio.run(main())
