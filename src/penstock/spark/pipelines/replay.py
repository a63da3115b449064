"""
replay: from the lake back to the bus, in order per aggregate, each message once.

The id of a replayed message is made of where it was first stored, so that a replay
that is run again stores nothing twice within the target's `duplicate_window`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    if config.setting("topics"):
        rows = rows.where(_any_like("topic", config.setting("topics")))
    for column, setting in (("aggregate_id", "aggregates"), ("event_type", "types")):
        if config.setting(setting):
            rows = rows.where(f.col(column).isin(*config.setting(setting)))
    if config.setting("since"):
        rows = rows.where(f.col("time") >= f.lit(str(config.setting("since"))).cast("timestamp"))
    if config.setting("until"):
        rows = rows.where(f.col("time") < f.lit(str(config.setting("until"))).cast("timestamp"))
    old, new = config.setting("replace", ["", ""])
    subject = (
        f.expr(f"concat('{new}', substr(subject, {len(old) + 1}))") if old else f.col("subject")
    )
    prefix = config.setting("id_prefix", "replay")
    # The headers JetStream acts on belong to the first publication, not to this one.
    kept = f.filter("headers", lambda header: ~header["key"].startswith("Nats-"))
    return rows.select(
        f.when(f.col("subject").startswith(old), subject)
        .otherwise(f.col("subject"))
        .alias("subject"),
        "data",
        kept.alias("headers"),
        f.concat_ws("-", f.lit(prefix), "stream", "sequence").alias("message_id"),
        f.coalesce("aggregate_id", "subject").alias("key"),
        "stream",
        "sequence",
    )


def _any_like(column: str, patterns: list[str] | str) -> str:
    each = [patterns] if isinstance(patterns, str) else patterns
    quoted = (pattern.replace("'", "''") for pattern in each)
    return " OR ".join(f"{column} LIKE '{pattern}'" for pattern in quoted)
