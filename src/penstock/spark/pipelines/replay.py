"""
replay: from the lake back to the bus, in order per aggregate, each message once.

It goes by batches, of which its checkpoint says which are done. The id of a replayed message
is made of the checkpoint's and of where it was first stored. So a batch that is done again after
a crash leaves out what the target holds of it, and another replay leaves out nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import starmap
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import ConfigError
from penstock.spark.files import files_of, folder_of
from penstock.spark.kafka import is_kafka, write_topics
from penstock.spark.options import parse_sink
from penstock.spark.pipelines.batches import Batch, Done, ReplayLog
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.lake import read_lake
from penstock.spark.pipelines.targets import Seen, Target, check_targets
from penstock.spark.sink.sink import TaskReport, check, plan, write

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "lake": "Lake to read from. Required.",
    "topics": "Topics to replay, SQL LIKE patterns; all.",
    "aggregates": "Aggregate ids to replay; all.",
    "types": "Event types to replay; all.",
    "since": "Messages stored at this time or later: 2026-11-15T08:00Z.",
    "until": "Messages stored before this time.",
    "replace": "Start of subjects to replace, and by what: [orders., replayed.orders.].",
    "rate": "Messages a second, over all tasks; unlimited.",
    "tasks": "Tasks that publish in parallel; 2. Events of one aggregate are always in one.",
}
TASKS = 2
BATCH_MESSAGES = 100_000
BATCH_S = 5
"""Duration of a batch at a rate: what a replay that is to stop finishes first."""
TOLD = (
    "messages bigint, duplicates bigint, doubled array<string>, "
    "targets array<struct<stream string, created string>>"
)
"""The report of each task."""


class Published(NamedTuple):
    """The reports of all tasks of a batch."""

    messages: int
    duplicates: int
    targets: list[Target]


class ReplayProgress(NamedTuple):
    """Counts of a replay that is under way."""

    stored: int
    """The messages that this run has stored."""
    before: int
    """The messages that were stored by runs before."""


def batches(spark: SparkSession, config: PipelineConfig) -> Iterator[ReplayProgress]:
    """Publish what the settings select, batch by batch; yield before and behind each."""
    config.need("checkpoint")
    tasks, rate = config.number("tasks", TASKS, least=1), config.number("rate", 0)
    rate_per_task = max(1, rate // tasks) if rate else None
    lake = str(config.setting("lake") or config.target)
    if not lake:
        raise ConfigError("the pipeline `replay` needs the setting `lake`")
    rows = select(read_lake(spark, lake), config)
    log = ReplayLog(folder_of(spark, config.checkpoint))
    name = log.claim(identity_of(config, files_of(spark).qualified(lake)))
    rows = with_ids(rows, name)
    _check_targets(config, log.done, [])
    before, stored = log.done.messages, 0
    yield ReplayProgress(stored, before)
    for batch in log.batches(rows, _batch_size(rate)):
        ordered = log.rows_of(batch, rows).repartition(tasks, "key")
        ordered = ordered.sortWithinPartitions("stream", "sequence")
        told = _publish(ordered, config, batch, rate_per_task)
        _check_targets(config, log.done, told.targets)
        log.finish(batch, told.messages, dict(told.targets))
        stored, before = stored + told.messages - told.duplicates, before + told.duplicates
        yield ReplayProgress(stored, before)


def identity_of(config: PipelineConfig, lake: str) -> dict[str, Any]:
    """Return what makes it another replay."""
    texts = {name: _texts(config, name) for name in ("topics", "aggregates", "types", "replace")}
    times = {name: str(config.time(name) or "") for name in ("since", "until")}
    return {"lake": lake, **texts, **times}


def _batch_size(rate: int) -> int:
    return max(1, min(BATCH_MESSAGES, rate * BATCH_S)) if rate else BATCH_MESSAGES


def _publish(
    rows: DataFrame, config: PipelineConfig, batch: Batch, rate_per_task: int | None
) -> Published:
    """Publish the rows of a batch."""
    if is_kafka(config.source):
        write_topics(rows, config.source, rate_per_second=rate_per_task)
        return Published(rows.count(), 0, [])
    options = _sink_options(config)
    if rate_per_task is not None:
        options["ratePerSecond"] = str(rate_per_task)
    return publish(rows.select("subject", "data", "headers", "message_id"), options, batch.began_s)


def publish(messages: DataFrame, options: dict[str, str], began_s: float) -> Published:
    """Publish messages, and return what all tasks tell."""
    planned = plan(*parse_sink(options), messages.schema, began_s=began_s)

    def write_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        seen = Seen(planned)
        written = write(planned, planned.job, seen.watch(batches))
        told = {
            "messages": written.messages,
            "duplicates": written.duplicates,
            "doubled": written.doubled,
            "targets": [each._asdict() for each in seen.targets],
        }
        target = pa.struct({"stream": pa.string(), "created": pa.string()})
        numbers = {"messages": pa.int64(), "duplicates": pa.int64()}
        lists = {"doubled": pa.list_(pa.string()), "targets": pa.list_(target)}
        yield pa.RecordBatch.from_pylist([told], schema=pa.schema(numbers | lists))

    tasks = messages.mapInArrow(write_task, TOLD).collect()
    check([TaskReport(task.messages, task.duplicates, {}, task.doubled) for task in tasks])
    return Published(
        sum(task.messages for task in tasks),
        sum(task.duplicates for task in tasks),
        [Target(*each) for task in tasks for each in task.targets],
    )


def _check_targets(config: PipelineConfig, done: Done, targets: Iterable[Target]) -> None:
    """Raise if a stream is another than it was when something was stored in it."""
    if not is_kafka(config.source):
        before = starmap(Target, done.targets.items())
        check_targets(parse_sink(_sink_options(config))[0], [*before, *targets])


def _sink_options(config: PipelineConfig) -> dict[str, str]:
    return {name: value for name, value in config.source.items() if name != "stream"}


def summary(progress: ReplayProgress) -> str:
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
    if since := config.time("since"):
        rows = rows.where(f.col("time") >= f.lit(since))
    if until := config.time("until"):
        rows = rows.where(f.col("time") < f.lit(until))
    old, new = _replacement(config)
    _check_subjects(rows, old)
    rest = f.expr(f"substr(subject, {len(old) + 1})")
    # The headers JetStream acts on belong to the first publication, not to this one.
    kept = f.filter("headers", lambda header: ~header["key"].startswith("Nats-"))
    return rows.select(
        f.concat(f.lit(new), rest).alias("subject"),
        "data",
        kept.alias("headers"),
        f.coalesce("aggregate_id", "subject").alias("key"),
        "stream",
        "sequence",
    )


def with_ids(rows: DataFrame, replay: str) -> DataFrame:
    """Give each message an id that it has in one replay only."""
    from pyspark.sql import functions as f

    return rows.withColumn("message_id", f.concat_ws("-", f.lit(replay), "stream", "sequence"))


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
