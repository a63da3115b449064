"""
The same rows on a real Kafka broker, read by Spark's own connector.

The broker is that of the tests, with more memory; the topic has one partition per core of
Spark. Spark needs the connector's jars from the start: see `settings`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.sparkstream import SUBJECTS, envelope
from penstock.bus.testing.connector import fetch_connector
from penstock.bus.testing.kafka import KafkaBroker
from penstock.errors import MissingExtra

TOPIC = "envelopes"
PARTITIONS = 2
JAVA_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC")
PRODUCER = {"linger.ms": 20, "queue.buffering.max.messages": 500_000}


@cache
def settings() -> dict[str, str]:
    """
    Return Spark's settings for reading Kafka; none, with the reason on the terminal, if it
    cannot.
    """
    import pyspark

    try:
        import confluent_kafka  # noqa: F401

        connector = fetch_connector(pyspark.__version__)
    except (ImportError, MissingExtra) as error:
        print(f"not beside Kafka: {error}", file=sys.stderr, flush=True)
        return {}
    print(f"Kafka connector {connector.version}, Spark {pyspark.__version__}", flush=True)
    return {"spark.jars": connector.jars}


@contextmanager
def topic(count: int, directory: Path) -> Iterator[Callable[[Any], Any]]:
    """Run a broker with the envelopes on a topic; yield a function from session to frame."""
    folder = directory / "kafka"
    folder.mkdir()
    with KafkaBroker(folder, java_options=JAVA_OPTIONS) as broker:
        _fill(broker.address, count)
        yield (
            lambda spark: (
                spark.read.format("kafka")
                .option("kafka.bootstrap.servers", broker.address)
                .option("subscribe", TOPIC)
                .load()
            )
        )


def _fill(address: str, count: int) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": address, **PRODUCER})
    for number in range(count):
        while True:
            try:
                producer.produce(
                    TOPIC, envelope(number), b"%d" % (number % SUBJECTS), on_delivery=_check
                )
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    assert not producer.flush(60), "the broker does not accept the records"


def _check(error: object, _: object) -> None:
    assert error is None, error
