"""
A process of a service, to be killed, frozen and replaced: it writes down what it handles.

It appends a line to a file for each attempt that begins, and one for each that succeeds,
so that whoever reads the file knows in which order things happened in all processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from typing import Any

from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig, SubscriberConfig
from penstock.bus.config.bus import PublisherConfig
from penstock.bus.config.nats import ConsumerConfig, JetStreamConfig

FAILURES = 0.02
SLOW = 0.01
SLOW_S = 0.05
HUNG = 0.001
POISON = 211
"""One event in so many can never be handled."""


CONSUMERS = {
    "": ConsumerConfig(ack_pending_max=300),
    # Nobody kills it, however slow the machine: only a clean stop hands it over.
    "rolled": ConsumerConfig(ack_pending_max=300, takeover_s=120.0),
}


class Log:
    """A file that many processes append to, a whole line at a time."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind: str, envelope: Envelope[Any]) -> None:
        """Add a line."""
        topic = envelope.event_id.rpartition("-")[0]
        fields = (kind, os.environ["MEMBER"], topic, envelope.aggregate_id, str(envelope.payload))
        os.write(self._file, (" ".join(fields) + "\n").encode())


def config(url: str, namespace: str, service: str) -> BusConfig:
    """Return how members and publishers run."""
    return BusConfig(
        type="nats",
        namespace=namespace,
        service=service,
        shutdown_timeout_s=10.0,
        nats=NatsConfig(
            urls=tuple(url.split(",")),
            jetstream=JetStreamConfig(consumer=CONSUMERS.get(service, CONSUMERS[""])),
        ),
        publisher=PublisherConfig(ack_timeout_s=60.0),
        subscriber=SubscriberConfig(
            attempts_max=4, backoff_s=0.01, backoff_s_max=0.1, handler_timeout_s=1.0
        ),
    )


def handler_of(pattern: str, log: Log, dice: random.Random) -> Any:
    """Return a handler that fails, hangs and is slow now and then."""

    def begin(envelope: Envelope[Any]) -> float:
        log.write("start", envelope)
        if envelope.payload % POISON == 0:
            raise ValueError("poison")
        if dice.random() < FAILURES:
            raise RuntimeError("bad luck")
        chance = dice.random()
        return 30.0 if chance < HUNG else SLOW_S if chance < SLOW else 0.0

    async def handle(envelope: Envelope[Any]) -> None:
        await asyncio.sleep(begin(envelope))
        log.write("done", envelope)

    def handle_on_thread(envelope: Envelope[Any]) -> None:
        time.sleep(min(begin(envelope), SLOW_S))
        log.write("done", envelope)

    return handle_on_thread if pattern.endswith("plain") else handle


async def main(url: str, namespace: str, service: str, topics: str, path: str) -> None:
    """Handle these topics until SIGTERM."""
    log, dice = Log(path), random.Random(os.getpid())
    bus = EventBus(config(url, namespace, service))
    for topic in json.loads(topics):
        bus.on(topic)(handler_of(topic, log, dice))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with bus:
        print("ready", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
