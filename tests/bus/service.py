"""
A service as people write one: `service.py URL NAMESPACE PORT WAY`; WAY is how its handler behaves.

It says what happens on its standard output, a line for each event.
"""

import asyncio
import logging
import os
import sys
import time
from dataclasses import replace

from penstock.bus import ConsumerConfig, Envelope, EventBus, JetStreamConfig, SubscriberConfig

url, namespace, port, way = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
timeout_s = 1.0 if way in ("stubborn", "thread") else 3600.0
bus = EventBus.open(url, namespace=namespace, service="shop", shutdown_timeout=timeout_s)
if way.startswith(("freezes", "takeover ")):
    takeover_s = float(way.removeprefix("takeover ")) if way.startswith("takeover ") else 1.0
    consumer = ConsumerConfig(takeover=takeover_s)
    nats = replace(bus.config.nats, jetstream=JetStreamConfig(consumer=consumer))
    bus = EventBus(replace(bus.config, nats=nats, subscriber=SubscriberConfig(max_threads=2)))


async def say(envelope: Envelope[int]) -> None:
    print(envelope.payload, flush=True)
    await asyncio.sleep(0.01)


def say_on_thread(envelope: Envelope[int]) -> None:
    # In one piece: what `print` writes of two threads may come mixed up.
    os.write(1, b"%d\n" % envelope.payload)
    time.sleep(0.01)


async def handle(envelope: Envelope[float]) -> None:
    print("begin", flush=True)
    if way == "exit" and envelope.payload == 0:
        sys.exit(3)
    try:
        await asyncio.sleep(envelope.payload)
    except asyncio.CancelledError:
        if way != "stubborn":
            raise
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
    print("end", flush=True)


def handle_on_thread(envelope: Envelope[float]) -> None:
    print("begin", flush=True)
    time.sleep(envelope.payload)
    print("end", flush=True)


ways = {"thread": handle_on_thread, "freezes": say, "freezes on a thread": say_on_thread}
bus.on("orders")(say if way.startswith("takeover ") else ways.get(way, handle))
bus.run(port=port)
print("closed", flush=True)
