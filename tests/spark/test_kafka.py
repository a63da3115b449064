"""A pipeline on a Kafka-backed bus, through Spark's own connector and on a real broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra `kafka`")

import duckdb

from penstock.bus import Envelope, EventBus
from penstock.bus.engines.kafka.layout import sequence_of
from penstock.bus.testing.kafka import KafkaBroker, classpath
from penstock.errors import MissingExtra
from penstock.spark.kafka import as_messages

EVENTS = 200

DEPENDENCY = """\
    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{number}</version>
      <exclusions>
        <exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
"""
SPARK = pyspark.__version__
JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", SPARK),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    "<groupId>penstock</groupId><artifactId>connector</artifactId><version>1</version>"
    "<dependencies>{dependencies}</dependencies></project>"
).format(
    dependencies="".join(
        DEPENDENCY.format(group=group, artifact=artifact, number=number)
        for group, artifact, number in JARS
    )
)


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


@pytest.fixture
def connector() -> str:
    """Return the jars of the connector; skip where they cannot be fetched."""
    try:
        return classpath(POM, name="spark-kafka", version=SPARK)
    except MissingExtra as error:
        pytest.skip(f"Spark's Kafka connector {SPARK}: {error}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_topics_on_kafka_are_archived_exactly_once(
    connector: str, kafka: KafkaBroker, tmp_path: Path
) -> None:
    first = asyncio.run(_publish(kafka, range(EVENTS)))
    _archive(kafka, connector, tmp_path)
    second = asyncio.run(_publish(kafka, range(EVENTS, EVENTS + 50)))
    _archive(kafka, connector, tmp_path)
    rows = duckdb.sql(
        f"SELECT event_id, topic FROM read_parquet('{tmp_path}/lake/**/*.parquet', "
        "hive_partitioning=true)"
    ).fetchall()

    assert sorted(first + second) == sorted(event_id for event_id, _ in rows)
    assert {"orders.placed"} == {topic for _, topic in rows}


async def _publish(kafka: KafkaBroker, numbers: range) -> list[str]:
    events = [
        Envelope(aggregate_id=f"k{number % 10}", event_type="t", payload=number)
        for number in numbers
    ]
    async with EventBus.open(kafka.url, namespace="archived") as bus:
        await bus.publish_envelope_batch("orders.placed", events)
        await bus.publish_envelope_sync("bills.paid", events[0])
    return [event.event_id for event in events]


def _archive(kafka: KafkaBroker, connector: str, folder: Path) -> None:
    config = {
        "pipeline": "archive",
        "source": {"servers": kafka.url, "namespace": "archived", "topics": "orders.>"},
        "target": str(folder / "lake"),
        "checkpoint": str(folder / "checkpoint"),
        "spark": {
            "spark.jars.packages": "",
            "spark.jars": connector.replace(":", ","),
            "spark.ui.enabled": "false",
        },
    }
    path = folder / "archive.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    command = [sys.executable, "-m", "penstock", "pipeline", "run", "--config", str(path), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=140)
    assert 0 == done.returncode, done.stderr[-3000:]
