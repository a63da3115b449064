"""
Topics of a Kafka-backed event bus, through Spark's own Kafka connector.

A source with `servers: kafka://…` is read by `format("kafka")` and given the columns of
the `penstock` source, so that every pipeline works on either. A pipeline that publishes
writes the same way. The connector is a jar that is not part of PySpark: `penstock
pipeline` has Spark fetch it by its Maven coordinates, unless `spark.jars.packages` or
`spark.jars` of the pipeline say where it is.

| option | meaning |
|---|---|
| `servers` | `kafka://host:9092,…` |
| `namespace` | namespace of the bus; `events` |
| `topics` | topics of the bus, with `*` and `>`; all of the namespace |
| `kafka.…`, `startingOffsets`, `maxOffsetsPerTrigger`, … | passed on to the connector |

`stream` is topic and partition, `sequence` is `offset * 10000 + partition + 1`, as the
bus counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import ClientError, ConfigError, MissingExtra
from penstock.spark.sink.publish import Pace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SCHEME = "kafka://"
NAMESPACE = "events"
OWN_OPTIONS = ("servers", "namespace", "topics", "stream", "ratePerSecond")
PARTITIONS_MAX = 10_000
TIMEOUT_S = 10
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"

TOKEN, REST = r"[^.]+", r".+"


def is_kafka(source: Mapping[str, str]) -> bool:
    """Tell whether the options of a source name a Kafka cluster."""
    return str(source.get("servers", "")).startswith(SCHEME)


def connector(source: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session that can read this source."""
    if not is_kafka(source):
        return {}
    from pyspark import __version__

    return {"spark.jars.packages": f"{CONNECTOR}:{__version__}"}


def follow_topics(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    """Return what is stored on topics, and goes on being stored."""
    reader = spark.readStream.format("kafka").options(**_reading(source))
    return as_messages(reader.load(), namespace_of(source))


def read_topics(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    """Return what is stored on topics now."""
    reader = spark.read.format("kafka").options(**_reading(source))
    return as_messages(reader.load(), namespace_of(source))


def write_topics(
    messages: DataFrame, source: Mapping[str, str], *, rate_per_second: int | None = None
) -> None:
    """Store messages on the topics of their subjects; `key` keeps their order."""
    from pyspark.sql import functions as f

    if rate_per_second is not None:
        # The connector has no rate, so that rows come to it no faster than they may go.
        messages = messages.mapInArrow(partial(at_rate, rate_per_second), messages.schema)
    records = messages.select(
        f.concat(f.lit(f"{namespace_of(source)}."), "subject").alias("topic"),
        f.col("key").cast("binary").alias("key"),
        f.col("data").alias("value"),
        f.transform(
            "headers",
            lambda one: f.struct(
                one["key"].alias("key"), one["value"].cast("binary").alias("value")
            ),
        ).alias("headers"),
    )
    writer = records.write.format("kafka").option("includeHeaders", "true")
    writer.options(**_connection(source)).save()


def at_rate(rate_per_second: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on at a rate."""
    pace = Pace(rate_per_second)
    for batch in batches:
        for start in range(0, batch.num_rows, pace.messages_max):
            piece = batch.slice(start, pace.messages_max)
            pace.wait(piece.num_rows)
            yield piece


def follow_into_topic(rows: DataFrame, source: Mapping[str, str], subject: str) -> DataStreamWriter:
    """Store the column `data` of every micro-batch on one topic; `key` keeps the order."""
    records = rows.selectExpr("cast(key AS binary) AS key", "cast(data AS binary) AS value")
    writer = records.writeStream.format("kafka").options(**_connection(source))
    return writer.option("topic", f"{namespace_of(source)}.{subject}")


def count_behind(source: Mapping[str, str], offsets: Mapping[str, Mapping[str, int]]) -> int:
    """Return how many records are stored behind the offsets of a checkpoint."""
    try:
        from confluent_kafka import Consumer, KafkaException, TopicPartition
    except ImportError:
        raise MissingExtra(
            "Kafka needs the extra `kafka`; hint: pip install 'penstock[kafka]'"
        ) from None
    settings = {
        name.removeprefix("kafka."): value
        for name, value in _connection(source).items()
        if name.startswith("kafka.")
    }
    pattern = re.compile(topic_pattern(namespace_of(source), str(source.get("topics", ">"))))
    consumer = Consumer({**settings, "group.id": "penstock-pipeline-status"})
    try:
        behind = 0
        for name, topic in consumer.list_topics(timeout=TIMEOUT_S).topics.items():
            for number in topic.partitions if pattern.fullmatch(name) else ():
                partition = TopicPartition(name, number)
                first, end = consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)
                behind += max(0, end - max(first, offsets.get(name, {}).get(str(number), 0)))
        return behind
    except KafkaException as error:
        raise ClientError(f"Kafka at `{source['servers']}`: {error.args[0].str()}") from None
    finally:
        consumer.close()


def topic_pattern(namespace: str, topics: str) -> str:
    """Return the regular expression of topics of the bus, which may have `*` and `>`."""
    alternatives = []
    for pattern in topics.split(","):
        tokens = [
            TOKEN if token == "*" else REST if token == ">" else re.escape(token)
            for token in pattern.strip().split(".")
        ]
        alternatives.append(r"\.".join(tokens))
    return rf"{re.escape(namespace)}\.(?:{'|'.join(alternatives)})"


def as_messages(records: DataFrame, namespace: str) -> DataFrame:
    """Give the connector's records the columns of the `penstock` source."""
    from pyspark.sql import functions as f

    header = f.transform(
        f.coalesce("headers", f.array()),
        lambda one: f.struct(one["key"].alias("key"), one["value"].cast("string").alias("value")),
    )
    return records.select(
        f.expr(f"substr(topic, {len(namespace) + 2})").alias("subject"),
        f.col("value").alias("data"),
        header.alias("headers"),
        f.concat_ws("/", "topic", "partition").alias("stream"),
        (f.col("offset") * PARTITIONS_MAX + f.col("partition") + 1).alias("sequence"),
        f.col("timestamp").alias("time"),
    )


def _reading(source: Mapping[str, str]) -> dict[str, str]:
    topics = topic_pattern(namespace_of(source), str(source.get("topics", ">")))
    return {
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "subscribePattern": topics,
        **_connection(source),
    }


def _connection(source: Mapping[str, str]) -> dict[str, str]:
    servers = str(source.get("servers", "")).replace(SCHEME, "")
    if not servers:
        raise ConfigError("`servers` is missing; hint: kafka://host:9092")
    own = {name: str(value) for name, value in source.items() if name not in OWN_OPTIONS}
    return {"kafka.bootstrap.servers": servers, **own}


def namespace_of(source: Mapping[str, str]) -> str:
    return str(source.get("namespace", NAMESPACE))
