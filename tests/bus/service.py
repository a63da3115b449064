"""
A service as people write one: `service.py URL NAMESPACE PORT WAY`; WAY is how its handler behaves.

It says what happens on its standard output, a line for each event.
"""

import asyncio
import logging
import sys
import time

from penstock.bus import Envelope, EventBus

url, namespace, port, way = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
timeout_s = 1.0 if way in ("stubborn", "thread") else 3600.0
bus = EventBus.open(url, namespace=namespace, service="shop", shutdown_timeout_s=timeout_s)


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


bus.on("orders")(handle_on_thread if way == "thread" else handle)
bus.run(port=port)
print("closed", flush=True)
