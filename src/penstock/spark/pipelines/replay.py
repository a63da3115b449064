"""
replay: from the lake back to the bus, in order per aggregate, each message once.

The id of a replayed message is made of where it was first stored, so that a replay
that is run again stores nothing twice: all that the target holds is looked at before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.spark.kafka import is_kafka, write_topics
from penstock.spark.options import parse_sink
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.lake import read_lake
from penstock.spark.sink.sink import ALWAYS_S, Written, check, plan, write

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "lake": "Lake to read from. Required.",
    "topics": "Topics to replay, SQL LIKE patterns; all.",
    "aggregates": "Aggregate ids to replay; all.",
    "types": "Event types to replay; all.",
    "since": "Messages stored at this time or later.",
    "until": "Messages stored before this time.",
    "replace": "Start of subjects to replace, and by what: [orders., replayed.orders.].",
    "rate": "Messages a second, over all tasks; unlimited.",
    "tasks": "Tasks that publish in parallel; 2. Events of one aggregate are always in one.",
    "id_prefix": "What message ids start with; `replay`.",
}
TASKS = 2
COUNTS = "messages bigint, duplicates bigint"


def run(spark: SparkSession, config: PipelineConfig) -> DataFrame:
    """Publish what the settings select; return how much that was, and how much was there before."""
    tasks, rate = config.number("tasks", TASKS, least=1), config.number("rate", 0)
    lake = str(config.setting("lake") or config.target)
    if not lake:
        raise ConfigError("the pipeline `replay` needs the setting `lake`")
    rows = select(read_lake(spark, lake), config)
    ordered = rows.repartition(tasks, "key").sortWithinPartitions("stream", "sequence")
    rate_per_task = max(1, rate // tasks) if rate else None
    if is_kafka(config.source):
        write_topics(ordered, config.source, rate_per_second=rate_per_task)
        return spark.createDataFrame([(rows.count(), 0)], COUNTS)
    options = {name: value for name, value in config.source.items() if name != "stream"}
    if rate_per_task is not None:
        options["ratePerSecond"] = str(rate_per_task)
    messages = ordered.select("subject", "data", "headers", "message_id")
    written = publish(messages, options)
    check(written)
    total = sum(each.messages for each in written), sum(each.duplicates for each in written)
    return spark.createDataFrame([total], COUNTS)


def publish(messages: DataFrame, options: dict[str, str]) -> list[Written]:
    """Publish messages, and return what each task tells."""
    planned = plan(*parse_sink(options), messages.schema, began_s=ALWAYS_S)

    def write_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        numbers = {"messages": pa.int64(), "duplicates": pa.int64()}
        schema = pa.schema(numbers | {"doubled": pa.list_(pa.string())})
        written = write(planned, planned.job, batches)
        told = {
            "messages": written.messages,
            "duplicates": written.duplicates,
            "doubled": written.doubled,
        }
        yield pa.RecordBatch.from_pylist([told], schema=schema)

    rows = messages.mapInArrow(write_task, f"{COUNTS}, doubled array<string>").collect()
    return [Written(row.messages, row.duplicates, {}, row.doubled) for row in rows]


def summary(result: DataFrame) -> str:
    """Return how much was published, and how much of it the target had already."""
    (counts,) = result.collect()
    stored = f"{counts.messages - counts.duplicates:,} messages stored"
    if not counts.duplicates:
        return stored
    return f"{stored}, {counts.duplicates:,} were stored by a replay before"


def select(rows: DataFrame, config: PipelineConfig) -> DataFrame:
    """Return the rows to replay as messages, with the `key` that keeps them in order."""
    from pyspark.sql import functions as f

    topics = _texts(config, "topics")
    if topics:
        rows = rows.where(reduce(or_, [f.col("topic").like(topic) for topic in topics]))
    for column, setting in (("aggregate_id", "aggregates"), ("event_type", "types")):
        if chosen := _texts(config, setting):
            rows = rows.where(f.col(column).isin(*chosen))
    if config.setting("since"):
        rows = rows.where(f.col("time") >= f.lit(str(config.setting("since"))).cast("timestamp"))
    if config.setting("until"):
        rows = rows.where(f.col("time") < f.lit(str(config.setting("until"))).cast("timestamp"))
    old, new = _replacement(config)
    _check_subjects(rows, old)
    rest = f.expr(f"substr(subject, {len(old) + 1})")
    prefix = config.setting("id_prefix", "replay")
    # The headers JetStream acts on belong to the first publication, not to this one.
    kept = f.filter("headers", lambda header: ~header["key"].startswith("Nats-"))
    return rows.select(
        f.concat(f.lit(new), rest).alias("subject"),
        "data",
        kept.alias("headers"),
        f.concat_ws("-", f.lit(prefix), "stream", "sequence").alias("message_id"),
        f.coalesce("aggregate_id", "subject").alias("key"),
        "stream",
        "sequence",
    )


def _check_subjects(rows: DataFrame, old: str) -> None:
    """Raise if a subject has nothing to replace: it would be published to where it came from."""
    from pyspark.sql import functions as f

    others = rows.where(~f.col("subject").startswith(old)) if old else rows.limit(0)
    if other := others.select("subject").first():
        raise ConfigError(
            f"`{other.subject}` does not start with `{old}`, which `replace` is to replace, and "
            "would be published to where it came from; hint: leave it out by `topics`"
        )


def _texts(config: PipelineConfig, setting: str) -> list[str]:
    """Return a setting that is a list of texts, or one text."""
    given = config.setting(setting) or []
    return [given] if isinstance(given, str) else [str(each) for each in given]


def _replacement(config: PipelineConfig) -> tuple[str, str]:
    given = config.setting("replace") or ["", ""]
    if isinstance(given, str) or len(given) != 2:
        raise ConfigError(
            "`replace` must be two starts of subjects, the old and the new one: [a., b.]"
        )
    return str(given[0]), str(given[1])
