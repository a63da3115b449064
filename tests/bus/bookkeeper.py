"""
Handle each deposit once, although it may be killed: `bookkeeper.py URL NAMESPACE DATABASE`.

One transaction takes note of the event, changes the balance and writes the event that
follows from it; a relay publishes that one.
"""

import asyncio
import contextlib
import sqlite3
import sys
from typing import Any

from penstock.bus import Envelope, EventBus, SubscriberConfig
from penstock.bus.outbox import SQLITE, Inbox, Outbox, Relay, RelayConfig, SqliteStore

outbox, inbox = Outbox(SQLITE), Inbox(SQLITE, service="bookkeeper")


def book(database: sqlite3.Connection, event: Envelope[Any]) -> None:
    account = event.aggregate_id
    with database:
        if not inbox.accept(database, event.event_id):
            return
        database.execute("UPDATE balances SET cents = cents + ? WHERE account = ?", (1, account))
        booked = Envelope(aggregate_id=account, event_type="Booked", payload=event.payload)
        outbox.add(database, "booked", booked)


async def main(url: str, namespace: str, path: str) -> None:
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as database:

        async def handle(event: Envelope[Any]) -> None:
            book(database, event)

        async with (
            EventBus.open(
                url,
                namespace=namespace,
                service="bookkeeper",
                subscriber=SubscriberConfig(lanes=8),
            ) as bus,
            Relay(bus, SqliteStore(path), RelayConfig(poll_s=0.01, rows_max=20)),
        ):
            await bus.subscribe_envelope("deposits", handle)
            print("ready", flush=True)
            await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
