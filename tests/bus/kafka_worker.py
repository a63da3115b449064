"""
Handle events and write down which, although it may be killed.

`kafka_worker.py BROKER NAMESPACE FILE`. One event in a hundred fails the first time.
"""

import asyncio
import os
import random
import sys
from dataclasses import replace

from penstock.bus import BusConfig, Envelope, EventBus, SubscriberConfig
from penstock.bus.config.kafka import KafkaConfig, KafkaConsumerConfig

FAILING_SHARE = 0.01


async def main(broker: str, namespace: str, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    failed: set[str] = set()

    async def handle(event: Envelope[int]) -> None:
        await asyncio.sleep(0.001)
        if event.event_id not in failed and random.random() < FAILING_SHARE:
            failed.add(event.event_id)
            raise RuntimeError("now and then")
        # One write to the end of a file is one line, also beside another process.
        os.write(file, f"{event.aggregate_id} {event.payload}\n".encode())

    consumer = KafkaConsumerConfig(session_timeout=6.0, max_poll_interval=60.0)
    config = BusConfig(
        type="kafka",
        namespace=namespace,
        kafka=KafkaConfig(brokers=(broker,), consumer=consumer),
        subscriber=replace(SubscriberConfig(), backoff=0.02),
    )
    async with EventBus(config) as bus:
        await bus.subscribe_envelope("orders", handle)
        await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
