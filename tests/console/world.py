"""A server with everything the console shows, and traffic on it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.servers import PENSTOCK, ServerProcess, wait_until

import penstock
from penstock.bus import Envelope, EventBus
from penstock.bus.config.loading import load_config
from penstock.client.jetstream.keyvalue import KeyValue
from penstock.errors import ClientError

LONG = "AUDIT_OF_EVERYTHING_THAT_HAPPENS_IN_THE_EUROPEAN_WAREHOUSES_AND_AT_THEIR_SUPPLIERS"
HOSTILE = '<img src=x onerror="document.title=1">'
CONFIG = """
server_name: "eu-warehouse-1"
jetstream { store_dir: store }
http: "127.0.0.1:-1"
monitor { actions: true }
accounts {
  SHOP { jetstream: enabled, users: [
    { user: ann, password: pw }
    { user: bob, password: pw, permissions: {
      publish: ["$JS.API.STREAM.INFO.>", "$JS.API.STREAM.MSG.GET.ORDERS"], subscribe: "_INBOX.>" } }
  ] }
  TEAM { jetstream: enabled, users: [ { user: tim, password: pw } ] }
  SYS { users: [ { user: sys, password: pw } ] }
}
system_account: SYS
"""
LOGIN: Any = {"user": "ann", "password": "pw"}
REPORT = {
    "name": "orders-archive",
    "stream": "ORDERS",
    "batch": 7,
    "rows_per_s": 1234.5,
    "behind_messages": 42,
    "behind_s": 3.0,
}
ORDER = {"id": 1, "customer": {"name": f"Zoë {HOSTILE}"}, "items": [{"sku": "A-1", "count": 2}]}


@contextmanager
def world(http_port: int = -1) -> Iterator[ServerProcess]:
    """Yield a server that has everything."""
    config = CONFIG.replace("127.0.0.1:-1", f"127.0.0.1:{http_port}")
    with ServerProcess(PENSTOCK, config) as server:
        asyncio.run(fill(server.url))
        wait_until(lambda: server.varz()["connections"] == 0)
        yield server


async def fill(url: str) -> None:
    """Store what the console is to show."""
    async with await penstock.connect(url, name="order-service", **LOGIN) as client:
        js = client.jetstream()
        await js.streams.create("ORDERS", subjects=["orders.>"], max_msgs=500)
        await js.streams.create("PAYMENTS", subjects=["payments.>"], max_bytes=1 << 20)
        await js.streams.create(LONG, subjects=["audit.>"])
        await js.streams.create("EVENTS_OF_&amp;", subjects=["odd.>"])
        for number in range(30):
            await js.streams.create(f"DEVICES_{number:02}", subjects=[f"devices.{number}.>"])
        for name, most in (("billing", 1000), ("shipping", 10)):
            await js.consumers.create(
                "ORDERS", durable_name=name, ack_policy="explicit", max_ack_pending=most
            )
        await js.publish_batch([("orders.placed", json.dumps(ORDER).encode())] * 480)
        await js.publish("orders.cancelled", b'{"id": 9007199254740993}', headers={"Why": HOSTILE})
        await js.publish("payments.card", b"\x00\xff\x01 no text")
        await js.publish("audit.login", HOSTILE.encode())
        await js.pull_consumer("ORDERS", "shipping").fetch(10, expires_s=5)
        await fill_bucket(js)
        await js.streams.create("OBJ_pictures", subjects=["$O.pictures.C.>", "$O.pictures.M.>"])
        cat = {"name": "cat.png", "size": 123456, "chunks": 1, "mtime": "2026-01-05T12:00:00Z"}
        await js.publish("$O.pictures.M.Y2F0LnBuZw==", json.dumps(cat).encode())
        for payload in (b"no report", json.dumps(REPORT).encode()):
            await client.publish("$PENSTOCK.PIPELINE", payload)
        await client.flush()
        await fill_bus(url)


async def fill_bucket(js: Any) -> None:
    """Make a bucket with a key of several revisions, and one that is deleted."""
    bucket = await KeyValue.create(js, "settings", history=5)
    for number in range(3):
        await bucket.put("theme", json.dumps({"revision": number}).encode())
    await bucket.put("limits.eu", b"12")
    await bucket.delete("limits.eu")


async def fill_bus(url: str) -> None:
    """Run a service whose handler fails for some events, until those are dead letters."""
    config = load_config(
        {
            "type": "nats",
            "namespace": "shop",
            "service": "billing",
            "nats": {"urls": [url], "user": "ann", "password": "pw"},
            "subscriber": {"max_attempts": 2, "backoff": 0.01},
        }
    )
    bus = EventBus(config)
    last = asyncio.Event()

    @bus.on("dead-letters.orders.placed")
    async def bury(event: Any) -> None:
        if event.payload["amount"] == 9:
            last.set()

    @bus.on("orders.placed")
    async def handle(event: Any) -> None:
        if event.payload["amount"] % 3 == 0:
            raise ValueError(f"card {event.payload['amount']} was declined")

    async with bus:
        for amount in range(1, 10):
            payload = {"amount": amount}
            event: Any = Envelope(
                aggregate_id=f"order-{amount}", event_type="OrderPlaced", payload=payload
            )
            await bus.publish_envelope("orders.placed", event)
        await last.wait()


@contextmanager
def traffic(url: str) -> Iterator[None]:
    """Publish and read all the time, on a thread of its own."""
    ends = threading.Event()

    async def run() -> None:
        async with (
            await penstock.connect(url, name="order-service", user="ann", password="pw") as one,
            await penstock.connect(
                url, name=f"feed {HOSTILE} {LONG}", user="ann", password="pw"
            ) as two,
        ):
            await two.subscribe("orders.>")
            js = one.jetstream()
            while not ends.is_set():
                with suppress(ClientError):
                    await js.publish_batch([("orders.placed", json.dumps(ORDER).encode())] * 20)
                    await js.publish_batch([("payments.card", b"\x00\xff")] * 5)
                await asyncio.sleep(0.1)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
