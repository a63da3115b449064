"""A process that handles numbered events and writes down what it handled, to be killed."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig, SubscriberConfig

FAILURES_PER_MESSAGE = 0.01
HANDLER_S_MAX = 0.04


async def main(url: str, namespace: str) -> None:
    """Handle for ever; a line on stdout for each event that was handled."""
    bus = EventBus(
        BusConfig(
            type="nats",
            namespace=namespace,
            nats=NatsConfig(urls=(url,)),
            subscriber=SubscriberConfig(max_attempts=50, backoff=0.005),
        )
    )
    dice = random.Random(7)

    @bus.on("load.*")
    async def handle(envelope: Envelope[Any]) -> None:
        if dice.random() < FAILURES_PER_MESSAGE:
            raise RuntimeError("bad luck")
        # Long enough that most aggregates have a message in flight when the process dies.
        await asyncio.sleep(dice.random() * HANDLER_S_MAX)
        # One write for each line: a killed process must not leave half of one.
        sys.stdout.write(f"{envelope.aggregate_id} {envelope.payload}\n")
        sys.stdout.flush()

    async with bus:
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
