"""From the settings of the bus to the properties of librdkafka."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from penstock.bus.config.bus import BusConfig
from penstock.errors import BusError, ConfigError

logger = logging.getLogger("penstock.bus.kafka")
library_logger = logging.getLogger("penstock.bus.kafka.librdkafka")
"""The log lines of librdkafka; each kind is repeated only now and then."""

REPEATED_S = 30.0
"""The shortest time between equal log lines: librdkafka repeats some ten times a second."""

T = TypeVar("T")
Properties = dict[str, Any]

HEARTBEAT_S_MAX = 3.0
WINDOW_SPARE = 2
"""Librdkafka holds as many messages as the window of the bus, and some it made itself."""


class Seldom(logging.Filter):
    """Drops what was said a moment ago, whatever the numbers in it."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether something is new."""
        now_s = monotonic()
        self._said = {text: s for text, s in self._said.items() if now_s - s < REPEATED_S}
        text = re.sub(r"\d+", "#", record.getMessage())
        is_new = text not in self._said
        self._said.setdefault(text, now_s)
        return is_new


library_logger.addFilter(Seldom())


def common(config: BusConfig) -> Properties:
    """Return the properties of every connection."""
    kafka = config.kafka
    properties: Properties = {
        "bootstrap.servers": ",".join(kafka.brokers),
        "client.id": config.service,
        "security.protocol": kafka.protocol,
        # An outage ends when it ends; do not sleep through half a minute of what follows.
        "reconnect.backoff.max.ms": 1000,
        "socket.connection.setup.timeout.ms": max(1000, _ms(kafka.connection_timeout)),
    }
    if kafka.protocol.startswith("sasl"):
        properties["sasl.mechanism"] = kafka.mechanism
    optional = {
        "sasl.username": kafka.user,
        "sasl.password": kafka.password,
        "ssl.ca.location": kafka.ca_file,
        "ssl.certificate.location": kafka.certificate_file,
        "ssl.key.location": kafka.key_file,
        "ssl.key.password": kafka.key_password,
    }
    return properties | {name: value for name, value in optional.items() if value is not None}


def producer(config: BusConfig) -> Properties:
    """Return the properties of the one producer."""
    settings = config.kafka.producer
    return {
        **common(config),
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": settings.linger * 1000,
        "batch.size": settings.batch_bytes,
        "batch.num.messages": max(10_000, config.publisher.max_pending),
        "queue.buffering.max.messages": config.publisher.max_pending * WINDOW_SPARE,
        "queue.buffering.max.kbytes": max(1, settings.buffer // 1024),
        "compression.type": settings.compression,
        "message.timeout.ms": _ms(config.publisher.publish_timeout),
        # As Java's producers do it, so that a key has one partition whoever writes.
        "partitioner": "murmur2_random",
        **config.kafka.properties,
    }


def consumer(config: BusConfig, group: str) -> Properties:
    """Return the properties of the one group member."""
    settings = config.kafka.consumer
    return {
        **_reading(config, group),
        "partition.assignment.strategy": "cooperative-sticky",
        "auto.offset.reset": settings.start,
        # What is settled is stored by us and committed by librdkafka.
        "enable.auto.offset.store": False,
        "enable.auto.commit": True,
        "auto.commit.interval.ms": _ms(settings.commit_interval),
        "session.timeout.ms": _ms(settings.session_timeout),
        "heartbeat.interval.ms": _ms(min(HEARTBEAT_S_MAX, settings.session_timeout / 6)),
        "max.poll.interval.ms": _ms(settings.max_poll_interval),
        **({"group.instance.id": settings.instance} if settings.instance else {}),
        "topic.metadata.refresh.interval.ms": _ms(settings.discovery_interval),
        **config.kafka.properties,
    }


def reader(config: BusConfig, group: str) -> Properties:
    """Return the properties of a consumer for replays, which is in no group."""
    return {
        **_reading(config, f"{group}.replay"),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        **config.kafka.properties,
    }


def checked(make: Callable[[], T]) -> T:
    """Make a client; say what is wrong with its settings."""
    try:
        return make()
    except KafkaException as error:
        raise ConfigError(f"`kafka`: {error.args[0].str()}") from error


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn errors of librdkafka into errors of the bus that name the failed action."""
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        raise BusError(f"{what}: {text_of(error)}") from error


def text_of(error: BaseException) -> str:
    """Return librdkafka's text for one of its errors."""
    cause = error.args[0] if error.args else None
    return cause.str() if isinstance(cause, KafkaError) else str(error) or type(error).__name__


def _reading(config: BusConfig, group: str) -> Properties:
    settings = config.kafka.consumer
    return {
        **common(config),
        "group.id": group,
        "fetch.wait.max.ms": _ms(settings.fetch_wait),
        "queued.max.messages.kbytes": max(1, settings.buffer // 1024),
        "allow.auto.create.topics": False,
    }


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
