"""
A process of a service, to be killed, frozen and replaced: it writes down what it handles.

It appends a line to a file for each attempt that begins, and one for each that succeeds,
so that whoever reads the file knows in which order things happened in all processes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from typing import Any

from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig, SubscriberConfig
from penstock.bus.config.bus import PublisherConfig
from penstock.bus.config.kafka import KafkaConfig, KafkaConsumerConfig
from penstock.bus.config.nats import ConsumerConfig, JetStreamConfig, StreamConfig

FAILURES = 0.02
PANICS = 0.002
SLOW = 0.01
SLOW_S = 0.05
HUNG = 0.001
POISON = 211
"""One event in so many can never be handled."""

IN_FLIGHT_MAX = 300
TAKEOVERS_S = {"": 3.0, "rolled": 120.0}
"""Nobody kills the latter, however slow the machine: only a clean stop hands it over."""
EXCLUSIVE = bool(os.environ.get("LEDGER_EXCLUSIVE"))
"""Whether one process of a service handles while the others stand by, instead of sharing."""
SESSIONS_S = {"": 120.0, "work": 6.0, "crew": 6.0}
"""On Kafka only processes of the named are killed; a broker may be away for a while."""


class Panic(BaseException):
    """What a library raises that is written in another language."""


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
        type="kafka" if url.startswith("kafka:") else "nats",
        namespace=namespace,
        service=service,
        shutdown_timeout=30.0,
        nats=_nats(tuple(url.split(",")), service),
        kafka=_kafka(url.removeprefix("kafka://"), service),
        publisher=PublisherConfig(publish_timeout=60.0),
        subscriber=SubscriberConfig(
            max_attempts=4, backoff=0.01, max_backoff=0.1, process_timeout=1.0
        ),
    )


def _nats(urls: tuple[str, ...], service: str) -> NatsConfig:
    takeover_s = TAKEOVERS_S.get(service, TAKEOVERS_S[""])
    jetstream = JetStreamConfig(
        consumer=ConsumerConfig(
            max_ack_pending=IN_FLIGHT_MAX, takeover=takeover_s, exclusive=EXCLUSIVE
        ),
        # A server of several keeps what all of them keep.
        stream=StreamConfig(replicas=len(urls)),
        request_timeout=10.0,
    )
    return NatsConfig(urls=urls, jetstream=jetstream)


def _kafka(broker: str, service: str) -> KafkaConfig:
    consumer = KafkaConsumerConfig(
        max_ack_pending=IN_FLIGHT_MAX,
        session_timeout=SESSIONS_S.get(service, SESSIONS_S[""]),
        discovery_interval=1.0,
    )
    return KafkaConfig(brokers=(broker,), consumer=consumer)


def handler_of(pattern: str, log: Log, dice: random.Random) -> Any:
    """Return a handler that fails, panics, hangs and is slow now and then."""

    def begin(envelope: Envelope[Any]) -> float:
        log.write("start", envelope)
        if envelope.payload % POISON == 0:
            raise ValueError("poison")
        if dice.random() < FAILURES:
            raise RuntimeError("bad luck")
        if dice.random() < PANICS:
            raise Panic("bad luck elsewhere")
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
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
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
