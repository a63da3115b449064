"""A pipeline on a Kafka-backed bus, through Spark's own connector and on a real broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra `kafka`")

import duckdb
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.bus import Envelope, EventBus
from penstock.bus.engines.kafka.layout import sequence_of
from penstock.bus.testing.connector import fetch_connector
from penstock.bus.testing.kafka import KafkaBroker
from penstock.cli import pipeline as pipeline_command
from penstock.errors import MissingExtra
from penstock.spark.kafka import as_messages, at_rate

EVENTS, LATER = 200, 50
HOST = Path(__file__).parent / "pipelinehost.py"
SPARK_SETTINGS = {
    "spark.jars.packages": "",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


def test_records_of_the_connector_get_the_columns_of_our_source(spark: Any) -> None:
    records = spark.sql(
        "SELECT binary('k1') AS key, binary('{}') AS value, 'archived.orders.placed' AS topic, "
        "3 AS partition, 7L AS offset, timestamp'2026-11-15 10:00:00' AS timestamp, "
        "array(named_struct('key', 'X-Event-Type', 'value', binary('t'))) AS headers "
        "UNION ALL SELECT null, binary('raw'), 'archived.bills', 0, 0L, "
        "timestamp'2026-11-15 10:00:01', null"
    )
    first, second = as_messages(records, "archived").orderBy("time").collect()

    assert ("orders.placed", b"{}", "archived.orders.placed/3") == (
        first.subject,
        bytes(first.data),
        first.stream,
    )
    assert (sequence_of(3, 7), sequence_of(0, 0)) == (first.sequence, second.sequence)
    assert [("X-Event-Type", "t")] == [tuple(header) for header in first.headers]
    assert [] == second.headers


def test_rows_are_held_to_a_rate() -> None:
    batch = pa.record_batch({"data": [b"%d" % n for n in range(100)]})
    started_s = time.monotonic()

    pieces = list(at_rate(200, iter([batch])))

    assert time.monotonic() - started_s >= 0.4
    assert batch.column("data").to_pylist() == [
        value for piece in pieces for value in piece.column("data").to_pylist()
    ]


@pytest.fixture
def connector() -> str:
    """Return the jars of the connector; skip where they cannot be fetched."""
    try:
        return fetch_connector(pyspark.__version__).jars
    except MissingExtra as error:
        pytest.skip(f"Spark's Kafka connector: {error}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pipeline_reads_kafka_writes_to_it_and_tells_how_far_it_is(
    connector: str, kafka: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = asyncio.run(_publish(kafka, range(EVENTS)))
    file = _archive(kafka, connector, tmp_path)
    second = asyncio.run(_publish(kafka, range(EVENTS, EVENTS + LATER)))
    until = datetime.now(UTC)
    assert 0 == pipeline_command.run(["status", "--config", str(file)])
    assert f"batch 0 finished, up to {EVENTS} records" in (behind := capsys.readouterr().out)
    assert f"behind by {LATER} messages" in behind

    _create(kafka, "archived.figures", "archived.again.placed")
    with pipelines(SPARK_SETTINGS | {"spark.jars": connector}) as run:
        run(**json.loads(file.read_text()))
        assert 0 == pipeline_command.run(["status", "--config", str(file)])
        assert "behind by 0 messages" in capsys.readouterr().out
        # A window ends when a run has seen a later message.
        for _ in range(3):
            run(**_metrics(kafka, tmp_path))
            asyncio.run(_publish(kafka, range(1)))
        for _ in range(2):
            run(**_replay(kafka, tmp_path))
    archived = duckdb.sql(
        f"SELECT event_id, topic FROM read_parquet('{tmp_path}/lake/**/*.parquet', "
        "hive_partitioning=true)"
    ).fetchall()
    figures = [json.loads(value) for _, value in _stored(kafka, "archived.figures")]
    replayed = [json.loads(value) for _, value in _stored(kafka, "archived.again.placed")]

    assert sorted(first + second) == sorted(event_id for event_id, _ in archived)
    assert {"orders.placed"} == {topic for _, topic in archived}
    assert EVENTS + LATER == sum(
        each["messages"] for each in figures if datetime.fromisoformat(each["start"]) < until
    )
    assert sorted(first + second) == sorted(each["event_id"] for each in replayed)


@contextmanager
def pipelines(settings: dict[str, str]) -> Iterator[Callable[..., None]]:
    """Return a function that runs a pipeline in one Spark with settings of its own."""
    with subprocess.Popen(
        [sys.executable, str(HOST), json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def run(**values: Any) -> None:
            asked.write(f"{json.dumps(values)}\n")
            asked.flush()
            assert '"done"\n' == answers.readline()

        yield run
        asked.close()


def _create(kafka: KafkaBroker, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.url.removeprefix("kafka://")})
    for created in admin.create_topics([NewTopic(topic, 2) for topic in topics]).values():
        created.result(60)


def _source(kafka: KafkaBroker) -> dict[str, str]:
    return {"servers": kafka.url, "namespace": "archived", "topics": "orders.>"}


def _metrics(kafka: KafkaBroker, folder: Path) -> dict[str, Any]:
    return {
        "pipeline": "metrics",
        "source": _source(kafka),
        "checkpoint": str(folder / "metrics-checkpoint"),
        "settings": {"subject": "figures", "window": "1 second", "lateness": "0 seconds"},
    }


def _replay(kafka: KafkaBroker, folder: Path) -> dict[str, Any]:
    settings = {"lake": str(folder / "lake"), "replace": ["orders.", "again."], "rate": 1000}
    return {
        "pipeline": "replay",
        "source": _source(kafka),
        "checkpoint": str(folder / "replay-checkpoint"),
        "settings": settings,
    }


def _stored(kafka: KafkaBroker, topic: str) -> list[tuple[bytes | None, bytes]]:
    """Return key and value of every record on a topic."""
    servers = kafka.url.removeprefix("kafka://")
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test"})
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        places = [TopicPartition(topic, number, 0) for number in partitions]
        ends = [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
        consumer.assign(places)
        records: list[tuple[bytes | None, bytes]] = []
        deadline_s = time.monotonic() + 60
        while len(records) < sum(ends):
            assert time.monotonic() < deadline_s
            if (record := consumer.poll(1)) is not None:
                assert record.error() is None
                records.append((record.key(), record.value()))
        return records
    finally:
        consumer.close()


async def _publish(kafka: KafkaBroker, numbers: range) -> list[str]:
    events = [
        Envelope(aggregate_id=f"k{number % 10}", event_type="t", payload=number)
        for number in numbers
    ]
    async with EventBus.open(kafka.url, namespace="archived") as bus:
        await bus.publish_envelope_batch("orders.placed", events)
        await bus.publish_envelope_sync("bills.paid", events[0])
    return [event.event_id for event in events]


def _archive(kafka: KafkaBroker, connector: str, folder: Path) -> Path:
    """Run the pipeline as a command, and return its file."""
    config = {
        "pipeline": "archive",
        "source": _source(kafka),
        "target": str(folder / "lake"),
        "checkpoint": str(folder / "checkpoint"),
        "spark": SPARK_SETTINGS | {"spark.jars": connector},
    }
    path = folder / "archive.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    command = [sys.executable, "-m", "penstock", "pipeline", "run", "--config", str(path), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert 0 == done.returncode, done.stderr[-3000:]
    return path
