"""
Publish orders, count them in Spark, and write the counts back.

    penstock serve -js &
    python examples/spark/orders.py [nats://127.0.0.1:4222]
"""

from __future__ import annotations

import asyncio
import json
import sys

from penstock.client import connect
from penstock.spark import open_envelopes, session

SERVERS = sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222"
ORDERS = 1000


async def publish() -> None:
    """Publish orders as events of the bus."""
    async with await connect(SERVERS) as client:
        js = client.jetstream()
        await js.streams.create("ORDERS", subjects=["orders.>"])
        await js.streams.create("TOTALS", subjects=["totals.>"])
        await js.publish_batch(
            (f"orders.{('eu', 'us')[n % 2]}", json.dumps(order(n)).encode()) for n in range(ORDERS)
        )


def order(n: int) -> dict[str, object]:
    """Return one event."""
    return {
        "event_id": f"order-{n}",
        "aggregate_id": f"customer-{n % 10}",
        "event_type": "order.placed",
        "timestamp": "2026-11-15T08:00:00Z",
        "payload": {"amount": n * 0.5},
    }


def main() -> None:
    """Add up what every customer spent, and publish the totals."""
    asyncio.run(publish())
    spark = session("orders", settings={"spark.ui.enabled": "false"})
    orders = spark.read.format("penstock").option("servers", SERVERS).option("stream", "ORDERS")
    events = open_envelopes(orders.load(), "amount DOUBLE")
    totals = events.groupBy("aggregate_id").agg({"payload.amount": "sum"}).toDF("customer", "total")
    totals.orderBy("customer").show()
    messages = totals.selectExpr(
        "concat('totals.', customer) AS subject",
        "to_json(struct(customer, total)) AS data",
        # Behind a shuffle an id must come from the row itself.
        "concat(customer, '-', total) AS message_id",
    )
    messages.write.format("penstock").option("servers", SERVERS).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main()
