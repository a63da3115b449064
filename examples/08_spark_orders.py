"""
Orders into Spark and back: publish them, add them up, and write the totals to the bus.

Output:
    customer-0 spent 24750.0
    customer-1 spent 24850.0
    customer-2 spent 24950.0
    customer-3 spent 25050.0
    customer-4 spent 25150.0
"""

import asyncio
import tempfile
from typing import Any

import penstock
from penstock.bus import Envelope, EventBus
from penstock.spark import open_envelopes, session

ORDERS, CUSTOMERS = 500, 5


async def publish(url: str) -> None:
    async with EventBus.open(url, namespace="shop") as bus:
        await bus.publish_envelope_batch(
            "orders.placed",
            [
                Envelope(
                    aggregate_id=f"customer-{number % CUSTOMERS}",
                    event_type="placed",
                    payload={"amount": number},
                )
                for number in range(ORDERS)
            ],
        )


def add_up(url: str) -> None:
    """Read the stream of the bus, and publish the total of every customer."""
    spark = session("orders", settings={"spark.ui.enabled": "false"})
    orders = spark.read.format("penstock").option("servers", url).option("stream", "shop").load()
    events = open_envelopes(orders, "amount DOUBLE")
    totals = events.groupBy("aggregate_id").agg({"payload.amount": "sum"}).toDF("customer", "total")
    messages = totals.selectExpr(
        "'shop.totals' AS subject",
        "to_json(struct(customer AS event_id, customer AS aggregate_id, 'added' AS event_type, "
        "'2026-01-01T00:00:00Z' AS timestamp, total AS payload)) AS data",
        # After a shuffle, an id must come from the row itself.
        "concat(customer, '-', total) AS message_id",
    )
    messages.write.format("penstock").option("servers", url).mode("append").save()
    spark.stop()


async def read_totals(url: str) -> dict[str, Any]:
    totals: dict[str, Any] = {}
    async with EventBus.open(url, namespace="shop", service="reports") as bus:
        async with bus.messages("totals") as events:
            async for event in events:
                totals[event.aggregate_id] = event.payload
                if len(totals) == CUSTOMERS:
                    return totals
    return totals


with (
    tempfile.TemporaryDirectory() as home,
    penstock.serve(jetstream=penstock.JetStreamConfig(store_dir=home)) as server,
):
    asyncio.run(publish(server.url))
    add_up(server.url)
    for customer, total in sorted(asyncio.run(read_totals(server.url)).items()):
        print(f"{customer} spent {total}")
