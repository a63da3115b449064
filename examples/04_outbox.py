"""
Outbox and inbox: an event exists if and only if its transaction commits, and counts once.

The shop writes the order and its event in one transaction. The stock records each event in
the same transaction as its effect, so a duplicate counts once.

Output:
    orders in the shop: book, lamp
    events published: 2
    delivered 3 times, taken from stock: book 1, lamp 1
"""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.bus import Envelope, EventBus
from penstock.bus.outbox import SQLITE, Inbox, Outbox, Relay, SqliteStore

outbox = Outbox(SQLITE)
inbox = Inbox(SQLITE, service="stock")


def place_order(database: sqlite3.Connection, item: str, *, fails: bool = False) -> None:
    with database:  # one transaction
        database.execute("INSERT INTO orders VALUES (?)", (item,))
        event = Envelope(aggregate_id=item, event_type="OrderPlaced", payload={"item": item})
        outbox.add(database, "orders.placed", event)
        if fails:
            raise RuntimeError("and so nothing of it has happened")


def take_from_stock(database: sqlite3.Connection, event: Envelope[Any]) -> None:
    with database:
        if inbox.accept(database, event.event_id):
            database.execute(
                "UPDATE stock SET taken = taken + 1 WHERE item = ?", (event.payload["item"],)
            )


async def main(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        outbox.create_tables(database)
        database.execute("CREATE TABLE orders (item TEXT)")
        database.execute("CREATE TABLE stock (item TEXT, taken INTEGER)")
        database.executemany("INSERT INTO stock VALUES (?, 0)", [("book",), ("lamp",)])
        database.commit()
        place_order(database, "book")
        place_order(database, "lamp")
        try:
            place_order(database, "ghost", fails=True)
        except RuntimeError:
            pass
        orders = [item for (item,) in database.execute("SELECT item FROM orders")]
        print(f"orders in the shop: {', '.join(orders)}")
        await publish_and_handle(path, database)


async def publish_and_handle(path: Path, database: sqlite3.Connection) -> None:
    async with EventBus.open("embedded:") as bus, Relay(bus, SqliteStore(path)) as relay:
        while relay.published_total < 2:
            relay.wake()
            await asyncio.sleep(0.01)
        print(f"events published: {relay.published_total}")
        events = [event async for _, event in bus.replay("orders.placed")]
        for event in [*events, events[0]]:  # one arrives twice
            take_from_stock(database, event)
    rows = database.execute("SELECT item, taken FROM stock ORDER BY item")
    print(f"delivered 3 times, taken from stock: {', '.join(f'{i} {n}' for i, n in rows)}")


with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(Path(directory) / "shop.db"))
