"""
audit: gaps, duplicates, changes and reordering between what was published and archived.

Looks at every message, on both sides, before it says that nothing is wrong. A stream is no
archive: what was archived and has been removed from it since, by retention or by hand, is well.
What was removed before it was archived is lost: its sequence is neither in the stream nor in the
lake. Nobody tells which subject a message had that is gone, so where only some subjects are read,
it may have been on one of them, or not: that is `unknown`, and no clean audit either. And an
archive that is being written is not complete: what it has not come to yet is waiting, as its
checkpoint tells.

What was handled can be compared too: any Parquet table with `event_id`, `aggregate_id` and
`position`, a number that grows in the order of handling. If anything was found, `penstock
pipeline run` ends with an error, for whoever waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ConfigError
from penstock.spark.connection import Connection
from penstock.spark.envelopes.envelope import FIELDS, open_events
from penstock.spark.files import files_of
from penstock.spark.kafka import is_kafka, namespace_of, read_topics
from penstock.spark.options import SourceOptions, parse_source
from penstock.spark.pipelines import auditreport
from penstock.spark.pipelines.config import PipelineConfig, with_decompressed
from penstock.spark.pipelines.lake import read_lake
from penstock.spark.pipelines.ownership import archived_to
from penstock.spark.source.counting import count_messages
from penstock.spark.source.position import Position, Range
from penstock.spark.source.stream import StreamState, start_at
from penstock.spark.source.streams import find_streams

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SETTINGS = {
    "lake": "Lake to compare the stream with. Required.",
    "handled": "Table of what was handled: `event_id, aggregate_id, position`.",
    "html": "File to write the report to as a page, besides the table in `target`.",
    "json": "File to write the report to as JSON.",
}
COUNTS = ("published", "archived", "waiting", "removed", "handled")
FINDINGS = (
    *("missing", "lost", "duplicated", "changed", "foreign", "unknown"),
    *("unhandled", "handled twice", "out of order"),
)
KINDS = (*COUNTS, *FINDINGS)
HANDLED = ("handled", "unhandled", "handled twice", "out of order")
EARLIEST, LATEST = Position("earliest"), Position("latest")
PART = 10_000
"""So many sequences are counted together."""
CONTENT = ("subject", "data", *FIELDS, "payload")
"""The parts of a message that the lake must hold as they were published."""


class Bounds(NamedTuple):
    """Which part of a stream there is, and how much of it the archive must have."""

    stream: str
    first: int
    last: int
    archived_to: int
    begin: int = 0
    """From where sequences are counted; but not before the first message that is known."""
    others: int | None = 0
    """
    Messages from there on, up to `archived_to`, that are on subjects that are not read; `None`
    where they cannot be counted, or where sequences have gaps of their own.
    """
    is_filtered: bool = False
    """Whether only some subjects are read, and sequences are counted from `begin` indeed."""


def run(spark: SparkSession, config: PipelineConfig) -> DataFrame:
    """Compare, write the report, and return it: one row for each aggregate."""
    config.need("source")
    lake = str(config.setting("lake") or "")
    if not lake:
        raise ConfigError("the pipeline `audit` needs the setting `lake`")
    # In this order, so that what happens meanwhile is neither missing nor foreign.
    finished = archived_to(spark, lake)
    archived = read_lake(spark, lake)
    published = open_events(_published(spark, config))
    bounds = _bounds(spark, config, published, finished)
    handled = spark.read.parquet(config.setting("handled")) if config.setting("handled") else None
    ours = _of_the_source(config, archived, bounds)
    report = compare(published, ours, handled, bounds).cache()
    if config.target:
        report.write.mode("overwrite").parquet(config.target)
    _write_reports(spark, config, report)
    return report


def _published(spark: SparkSession, config: PipelineConfig) -> DataFrame:
    if is_kafka(config.source):
        return read_topics(spark, config.source)
    return spark.read.format("penstock").options(**with_decompressed(config.source)).load()


def _of_the_source(config: PipelineConfig, archived: DataFrame, bounds: DataFrame) -> DataFrame:
    """Return the rows of the lake that came from the source."""
    if is_kafka(config.source):
        return archived.where(f"startswith(stream, '{namespace_of(config.source)}.')")
    return archived.join(bounds, "stream", "left_semi")


def _bounds(
    spark: SparkSession,
    config: PipelineConfig,
    published: DataFrame,
    finished: Mapping[str, int],
) -> DataFrame:
    if is_kafka(config.source):
        return bounds_of_topics(published)
    connection, source = parse_source(config.source)
    with Connection(connection, "penstock-pipeline") as opened:
        states = find_streams(opened, source)
        bounds = [
            _bounds_in(opened, source, state, finished.get(name, state.last_sequence))
            for name, state in states.items()
        ]
    return bounds_of(spark, bounds)


def _bounds_in(
    connection: Connection, source: SourceOptions, state: StreamState, archived_to: int
) -> Bounds:
    starting = source.starting_position.of(state.name, EARLIEST)
    ending = source.ending_position.of(state.name, LATEST)
    begin = 0
    if source.subjects or starting != EARLIEST:
        # What is gone before the head was mostly on other subjects.
        begin = max(start_at(connection, state, starting), state.earliest)
    others = None
    if ending == LATEST:
        others = _others(connection, source, state, Range(begin, archived_to))
    return Bounds(
        *(state.name, state.earliest, state.last_sequence, archived_to),
        begin=begin,
        others=others,
        is_filtered=bool(source.subjects),
    )


def _others(
    connection: Connection, source: SourceOptions, state: StreamState, checked: Range
) -> int | None:
    """Count messages of a range on subjects that are not read, if that can be done."""
    if not source.subjects or not checked.size:
        return 0
    if state.retention != "limits":
        # A consumer would take from others.
        return None
    everything = count_messages(connection, state, (), checked)
    return everything - count_messages(connection, state, source.subjects, checked)


def bounds_of_topics(published: DataFrame) -> DataFrame:
    """Return the same of topics on Kafka, whose sequences have gaps of their own."""
    from pyspark.sql import functions as f

    last = f.max("sequence")
    return (
        published.groupBy("stream")
        .agg(f.min("sequence").alias("first"), last.alias("last"), last.alias("archived_to"))
        .selectExpr("*", "0L AS begin", "CAST(NULL AS bigint) AS others", "false AS is_filtered")
    )


def bounds_of(spark: SparkSession, bounds: list[Bounds]) -> DataFrame:
    """Return the bounds of streams as a table."""
    schema = (
        "stream string, first bigint, last bigint, archived_to bigint, begin bigint, "
        "others bigint, is_filtered boolean"
    )
    return spark.createDataFrame(bounds, schema)


def compare(
    published: DataFrame, archived: DataFrame, handled: DataFrame | None, bounds: DataFrame
) -> DataFrame:
    """Return the counts of each aggregate, and the first sequence at which something was found."""
    from pyspark.sql import functions as f

    key = f.coalesce("aggregate_id", "subject").alias("aggregate")
    both = [name for name in CONTENT if name in archived.columns and name in published.columns]
    content, place = f.xxhash64(*both), ["stream", "sequence"]
    ours = published.select(*place, key, content.alias("ours"), f.lit(1).alias("published"))
    theirs = archived.groupBy(*place).agg(
        f.first(key).alias("archived_aggregate"),
        f.count("*").alias("archived"),
        f.collect_set(content).alias("theirs"),
    )
    found = (
        ours.join(theirs, place, "full")
        .join(f.broadcast(bounds), "stream", "left")
        .withColumn("aggregate", f.coalesce("aggregate", "archived_aggregate"))
    )
    sequence, is_published = f.col("sequence"), f.col("published").isNotNull()
    absent, is_due = f.col("archived").isNull(), sequence <= f.col("archived_to")
    kinds = {
        "waiting": absent & ~is_due,
        "removed": ~is_published & (sequence <= f.col("last")),
        "missing": absent & is_due,
        "duplicated": f.col("archived") > 1,
        "changed": is_published & (f.col("theirs") != f.array("ours")),
        "foreign": ~is_published & ~f.coalesce(sequence <= f.col("last"), f.lit(False)),
    }
    wrong = kinds["missing"] | kinds["duplicated"] | kinds["changed"] | kinds["foreign"]
    counts = found.groupBy("aggregate").agg(
        f.count("published").alias("published"),
        f.coalesce(f.sum("archived"), f.lit(0)).alias("archived"),
        *[_count(condition).alias(kind) for kind, condition in kinds.items()],
        f.min(f.when(wrong, sequence)).alias("first"),
    )
    order = _handled_order(published, handled)
    report = counts.join(order, "aggregate", "full")
    report = report.withColumn("first", f.least("first", "first_handled")).unionByName(
        _lost(bounds), True
    )
    report = report.unionByName(_gone_within(found.select(*place), bounds), True)
    return report.na.fill(0, list(KINDS)).select("aggregate", *KINDS, "first").orderBy("aggregate")


def _lost(bounds: DataFrame) -> DataFrame:
    """Return a row for each stream whose head is past what was archived of it."""
    lost = "first - 1 - archived_to"
    name = "concat(stream, ', from ', archived_to + 1, ' to ', first - 1)"
    return bounds.where(f"{lost} > 0").selectExpr(
        f"{name} AS aggregate", f"{lost} AS lost", "archived_to + 1 AS first"
    )


def _gone_within(known: DataFrame, bounds: DataFrame) -> DataFrame:
    """Return a row for each stream of which sequences are gone that the archive is past."""
    from pyspark.sql import functions as f

    checked = bounds.where("others IS NOT NULL")
    streams = _counted(
        known.join(f.broadcast(checked), "stream").where("sequence BETWEEN begin AND archived_to")
    )
    found = checked.join(streams, "stream", "left").selectExpr(
        "stream",
        "is_filtered",
        "archived_to",
        "if(is_filtered, begin, low) AS from",
        "coalesce(count, 0) + others AS count",
        "if(is_filtered, begin, coalesce(gap, high + 1)) AS first",
    )
    gone = "archived_to - from + 1 - count"
    return found.where(f"{gone} > 0").selectExpr(
        "concat(stream, ', within ', from, ' to ', archived_to) AS aggregate",
        f"if(is_filtered, 0, {gone}) AS lost",
        f"if(is_filtered, {gone}, 0) AS unknown",
        "first",
    )


def _counted(known: DataFrame) -> DataFrame:
    """Return how many sequences of each stream are known, from where to where, and a first gap."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    part = f.expr(f"sequence DIV {PART}").alias("part")
    parts = known.groupBy("stream", part).agg(
        f.count("*").alias("count"), f.min("sequence").alias("low"), f.max("sequence").alias("high")
    )
    before = f.lag("high").over(Window.partitionBy("stream").orderBy("part"))
    gap = "CASE WHEN low > before + 1 THEN before + 1 WHEN high - low + 1 > count THEN low END"
    return (
        parts.withColumn("before", before)
        .withColumn("gap", f.expr(gap))
        .groupBy("stream")
        .agg(
            f.sum("count").alias("count"),
            f.min("low").alias("low"),
            f.max("high").alias("high"),
            f.min("gap").alias("gap"),
        )
    )


def _handled_order(published: DataFrame, handled: DataFrame | None) -> DataFrame:
    """
    Count, for each aggregate, what was handled, never, twice, or in the wrong order.

    Out of order is what was handled after something that was published later. An event that
    was published twice is one event.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if handled is None:
        empty = published.limit(0).select(f.col("subject").alias("aggregate"))
        return empty.withColumns({kind: f.lit(0) for kind in HANDLED}).withColumn(
            "first_handled", f.lit(None).cast("bigint")
        )
    events = (
        published.where("event_id IS NOT NULL AND aggregate_id IS NOT NULL")
        .groupBy("event_id", "aggregate_id")
        .agg(f.min("sequence").alias("sequence"))
    )
    positions = handled.select("event_id", "aggregate_id", "position")
    before = (
        Window.partitionBy("aggregate_id")
        .orderBy("position")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    again = Window.partitionBy("event_id", "aggregate_id").orderBy("position")
    seen = events.join(positions, ["event_id", "aggregate_id"], "left").withColumns(
        {"latest": f.max("sequence").over(before), "time": f.row_number().over(again)}
    )
    was_handled = f.col("position").isNotNull()
    is_late = f.col("sequence") < f.col("latest")
    kinds = {
        "unhandled": ~was_handled,
        "handled twice": was_handled & (f.col("time") == 2),
        "out of order": was_handled & (f.col("time") == 1) & is_late,
    }
    wrong = reduce(or_, kinds.values())
    return seen.groupBy(f.col("aggregate_id").alias("aggregate")).agg(
        _count(was_handled).alias("handled"),
        *[_count(condition).alias(kind) for kind, condition in kinds.items()],
        f.min(f.when(wrong, f.col("sequence"))).alias("first_handled"),
    )


def summary(report: DataFrame) -> str:
    """Return the totals in one line; it speaks only of what was looked at."""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in totals_of(report).items())
    return f"{report.count():,} aggregates: {counts}"


def totals_of(report: DataFrame) -> dict[str, int]:
    """Return the counts over all aggregates."""
    from pyspark.sql import functions as f

    totals = report.agg(*[f.coalesce(f.sum(kind), f.lit(0)).alias(kind) for kind in KINDS]).first()
    assert totals is not None
    return {kind: int(totals[kind]) for kind in KINDS}


def is_clean(report: DataFrame) -> bool:
    """Tell whether nothing was found."""
    return not found_in(report).head(1)


def found_in(report: DataFrame) -> DataFrame:
    """Return the aggregates of which something was found."""
    return report.where(" + ".join(f"`{kind}`" for kind in FINDINGS) + " > 0")


def _count(condition: Column) -> Column:
    from pyspark.sql import functions as f

    return f.count(f.when(condition, 1))


def _write_reports(spark: SparkSession, config: PipelineConfig, report: DataFrame) -> None:
    html, document = config.setting("html"), config.setting("json")
    if not html and not document:
        return
    found = auditreport.Audit(
        source=str(config.source.get("stream") or config.source["servers"]),
        lake=str(config.setting("lake")),
        totals=totals_of(report),
        findings=FINDINGS,
        rows=[row.asDict() for row in found_in(report).limit(auditreport.ROWS_MAX).collect()],
    )
    files = files_of(spark)
    if html:
        files.replace(str(html), auditreport.page(found))
    if document:
        files.replace(str(document), auditreport.document(found))
