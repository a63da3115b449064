"""
replay: from the lake back to the bus, in order per aggregate, each message once.

It goes by batches, of which its checkpoint says which are done. The id of a replayed message
is made of where it was first stored. So a batch that is done again after a crash leaves out
what the target holds of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import ConfigError
from penstock.spark.files import files_of, folder_of
from penstock.spark.kafka import is_kafka, write_topics
from penstock.spark.options import parse_sink
from penstock.spark.pipelines.batches import Batch, ReplayLog
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.lake import read_lake
from penstock.spark.sink.sink import Written, check, plan, write

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
    "id_prefix": "What message ids start with; `replay`. Another one, to publish all again.",
}
TASKS = 2
BATCH_MESSAGES = 100_000
BATCH_S = 5
"""Duration of a batch at a rate: what a replay that is to stop finishes first."""
COUNTS = "messages bigint, duplicates bigint"


class Progress(NamedTuple):
    """Counts of a replay that is under way."""

    stored: int
    """The messages that this run has stored."""
    before: int
    """The messages that were stored by runs before."""


def batches(spark: SparkSession, config: PipelineConfig) -> Iterator[Progress]:
    """Publish what the settings select, batch by batch; yield before and behind each."""
    config.need("checkpoint")
    tasks, rate = config.number("tasks", TASKS, least=1), config.number("rate", 0)
    rate_per_task = max(1, rate // tasks) if rate else None
    lake = str(config.setting("lake") or config.target)
    if not lake:
        raise ConfigError("the pipeline `replay` needs the setting `lake`")
    rows = select(read_lake(spark, lake), config)
    log = ReplayLog(folder_of(spark, config.checkpoint))
    log.claim(identity_of(config, files_of(spark).qualified(lake)))
    before, stored = log.messages, 0
    yield Progress(stored, before)
    for batch in log.batches(rows, _batch_size(rate)):
        ordered = log.rows_of(batch, rows).repartition(tasks, "key")
        ordered = ordered.sortWithinPartitions("stream", "sequence")
        messages, duplicates = _publish(ordered, config, batch, rate_per_task)
        log.finish(batch, messages)
        stored, before = stored + messages - duplicates, before + duplicates
        yield Progress(stored, before)


def identity_of(config: PipelineConfig, lake: str) -> dict[str, Any]:
    """Return what makes it another replay."""
    texts = {name: _texts(config, name) for name in ("topics", "aggregates", "types", "replace")}
    times = {name: str(config.setting(name) or "") for name in ("since", "until")}
    return {"lake": lake, **texts, **times, "id_prefix": _id_prefix(config)}


def _batch_size(rate: int) -> int:
    return max(1, min(BATCH_MESSAGES, rate * BATCH_S)) if rate else BATCH_MESSAGES


def _publish(
    rows: DataFrame, config: PipelineConfig, batch: Batch, rate_per_task: int | None
) -> tuple[int, int]:
    """Publish the rows of a batch; return how many that were, and how many were there before."""
    if is_kafka(config.source):
        write_topics(rows, config.source, rate_per_second=rate_per_task)
        return rows.count(), 0
    options = {name: value for name, value in config.source.items() if name != "stream"}
    if rate_per_task is not None:
        options["ratePerSecond"] = str(rate_per_task)
    messages = rows.select("subject", "data", "headers", "message_id")
    written = publish(messages, options, batch.began_s)
    check(written)
    return sum(each.messages for each in written), sum(each.duplicates for each in written)


def publish(messages: DataFrame, options: dict[str, str], began_s: float) -> list[Written]:
    """Publish messages, and return what each task tells."""
    planned = plan(*parse_sink(options), messages.schema, began_s=began_s)

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


def summary(progress: Progress) -> str:
    """Return how much was published, and how much had been before."""
    stored = f"{progress.stored:,} messages stored"
    if not progress.before:
        return stored
    return f"{stored}, {progress.before:,} were stored by a replay before"


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
    # The headers JetStream acts on belong to the first publication, not to this one.
    kept = f.filter("headers", lambda header: ~header["key"].startswith("Nats-"))
    return rows.select(
        f.concat(f.lit(new), rest).alias("subject"),
        "data",
        kept.alias("headers"),
        f.concat_ws("-", f.lit(_id_prefix(config)), "stream", "sequence").alias("message_id"),
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


def _id_prefix(config: PipelineConfig) -> str:
    return str(config.setting("id_prefix", "replay"))


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
