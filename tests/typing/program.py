"""What a user writes, with a mistake on every line that says so; checkers must find just these."""

from __future__ import annotations

from datetime import timedelta

import penstock
from penstock.bus import Envelope, EventBus
from penstock.bus.sync import SyncEventBus

bus = EventBus.open("embedded:", service="orders")
EventBus.open("embedded:", servcie="orders")  # mistake
EventBus.open("embedded:", shutdown_timeout="soon")  # mistake
SyncEventBus("embedded:", namespce="shop")  # mistake


@bus.on("orders.*")
async def handle(envelope: Envelope[dict[str, int]]) -> None:
    print(envelope.aggregate_id)


async def use_client() -> None:
    async with penstock.Server(jetstream=True) as server:
        penstock.Server(prot=4222)  # mistake
        async with await penstock.connect(server.url, name="checks") as client:
            await penstock.connect(server.url, nmae="checks")  # mistake
            js = client.jetstream(domain="hub")
            client.jetstream(domian="hub")  # mistake
            await js.streams.create("S", subjects=["s.>"], max_age=timedelta(days=7))
            await js.streams.create("S", subject=["s.>"])  # mistake
            await js.streams.create("S", retention="worqueue")  # mistake
            await js.consumers.create("S", durable_name="d", ack_policy="explicit")
            await js.consumers.create("S", durable="d")  # mistake


async def use_bus(event: Envelope[dict[str, int]]) -> None:
    await handle(event)
    await handle("not an event")  # mistake
    await bus.configure_topic("orders", retention=3600.0)
    await bus.configure_topic("orders", retention_s=3600.0)  # mistake


def use_scripts(scripts: SyncEventBus) -> None:
    scripts.subscribe("raw", print, timeout_s=1.0)
    scripts.subscribe("raw", print, timeout=1.0)  # mistake
    scripts.subscribe_envelope("orders", print, timeout=1.0)  # mistake


with penstock.serve(jetstream=True) as running:
    print(running.pot)  # mistake
