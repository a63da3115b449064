"""
replay: from the lake back to the bus, in order per aggregate, each message once.

The id of a replayed message is made of where it was first stored, so that a replay
that is run again stores nothing twice within the target's `duplicate_window`.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.spark.kafka import is_kafka, write_topics
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.lake import read_lake

if TYPE_CHECKING:
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


def run(spark: SparkSession, config: PipelineConfig) -> DataFrame:
    """Publish what the settings select, and return it."""
    rows = select(read_lake(spark, str(config.setting("lake", config.target))), config)
    tasks = int(config.setting("tasks", 2))
    ordered = rows.repartition(tasks, "key").sortWithinPartitions("stream", "sequence")
    rate = max(1, int(config.setting("rate")) // tasks) if config.setting("rate") else None
    if is_kafka(config.source):
        write_topics(ordered, config.source, rate_per_second=rate)
        return rows
    options = {name: value for name, value in config.source.items() if name != "stream"}
    if rate is not None:
        options["ratePerSecond"] = str(rate)
    messages = ordered.select("subject", "data", "headers", "message_id")
    messages.write.format("penstock").options(**options).mode("append").save()
    return rows


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
    rest = f.expr(f"substr(subject, {len(old) + 1})")
    prefix = config.setting("id_prefix", "replay")
    # The headers JetStream acts on belong to the first publication, not to this one.
    kept = f.filter("headers", lambda header: ~header["key"].startswith("Nats-"))
    return rows.select(
        f.when(f.col("subject").startswith(old), f.concat(f.lit(new), rest))
        .otherwise(f.col("subject"))
        .alias("subject"),
        "data",
        kept.alias("headers"),
        f.concat_ws("-", f.lit(prefix), "stream", "sequence").alias("message_id"),
        f.coalesce("aggregate_id", "subject").alias("key"),
        "stream",
        "sequence",
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
