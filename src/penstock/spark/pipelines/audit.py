"""
audit: gaps, duplicates, changes and reordering between what was published and archived.

Looks at every message, on both sides, before it says that nothing is wrong. What
was handled can be compared too: any Parquet table with `event_id`, `aggregate_id`
and `position`, a number that grows in the order of handling. If anything was found,
`penstock pipeline run` ends with an error, for whoever waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.envelopes.envelope import open_envelopes
from penstock.spark.kafka import is_kafka, namespace_of, read_topics
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.lake import read_lake

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SETTINGS = {
    "lake": "Lake to compare the stream with. Required.",
    "handled": "Table of what was handled: `event_id, aggregate_id, position`.",
    "html": "File to write the report to, besides the table in `target`.",
}
COUNTS = ("published", "archived", "handled")
FINDINGS = (
    *("missing", "duplicated", "changed", "foreign"),
    *("unhandled", "handled twice", "out of order"),
)
KINDS = (*COUNTS, *FINDINGS)
HANDLED = ("handled", "unhandled", "handled twice", "out of order")


def run(spark: SparkSession, config: PipelineConfig) -> DataFrame:
    """Compare, write the report, and return it: one row for each aggregate."""
    config.need("source")
    published = open_envelopes(_published(spark, config))
    archived = read_lake(spark, str(config.setting("lake"))).where(_of_the_source(config))
    handled = spark.read.parquet(config.setting("handled")) if config.setting("handled") else None
    report = compare(published, archived, handled).cache()
    if config.target:
        report.write.mode("overwrite").parquet(config.target)
    if config.setting("html"):
        _write_html(report, str(config.setting("html")))
    return report


def _published(spark: SparkSession, config: PipelineConfig) -> DataFrame:
    if is_kafka(config.source):
        return read_topics(spark, config.source)
    return spark.read.format("penstock").options(**config.source).load()


def _of_the_source(config: PipelineConfig) -> str:
    """Return which rows of the lake came from the source."""
    if is_kafka(config.source):
        return f"startswith(stream, '{namespace_of(config.source)}.')"
    return f"stream = '{config.source['stream']}'"


def compare(published: DataFrame, archived: DataFrame, handled: DataFrame | None) -> DataFrame:
    """Return the counts of each aggregate."""
    from pyspark.sql import functions as f

    key = f.coalesce("aggregate_id", "subject").alias("aggregate")
    content = f.xxhash64("data")
    place = ["stream", "sequence"]
    ours = published.select(*place, key, content.alias("ours"), f.lit(1).alias("published"))
    # What retention has removed since cannot be compared, and is no stranger.
    kept = published.groupBy("stream").agg(f.min("sequence").alias("first"))
    compared = archived.join(f.broadcast(kept), "stream").where("sequence >= first")
    theirs = compared.groupBy(*place).agg(
        f.first(key).alias("archived_aggregate"),
        f.count("*").alias("archived"),
        f.collect_set(content).alias("theirs"),
    )
    both = ours.join(theirs, place, "full").withColumn(
        "aggregate", f.coalesce("aggregate", "archived_aggregate")
    )
    counts = both.groupBy("aggregate").agg(
        f.count("published").alias("published"),
        f.coalesce(f.sum("archived"), f.lit(0)).alias("archived"),
        _count(f.col("archived").isNull()).alias("missing"),
        _count(f.col("archived") > 1).alias("duplicated"),
        _count(f.col("published").isNotNull() & (f.col("theirs") != f.array("ours"))).alias(
            "changed"
        ),
        _count(f.col("published").isNull()).alias("foreign"),
    )
    order = _handled_order(published, handled)
    return counts.join(order, "aggregate", "full").na.fill(0).orderBy("aggregate")


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
        return empty.withColumns({kind: f.lit(0) for kind in HANDLED})
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
    return seen.groupBy(f.col("aggregate_id").alias("aggregate")).agg(
        _count(was_handled).alias("handled"),
        _count(~was_handled).alias("unhandled"),
        _count(was_handled & (f.col("time") == 2)).alias("handled twice"),
        _count(was_handled & (f.col("time") == 1) & (f.col("sequence") < f.col("latest"))).alias(
            "out of order"
        ),
    )


def summary(report: DataFrame) -> str:
    """Return the totals in one line; it speaks only of what was looked at."""
    from pyspark.sql import functions as f

    totals = report.agg(*[f.coalesce(f.sum(kind), f.lit(0)).alias(kind) for kind in KINDS]).first()
    assert totals is not None
    counts = ", ".join(f"{totals[kind]:,} {kind}" for kind in KINDS)
    return f"{report.count():,} aggregates: {counts}"


def is_clean(report: DataFrame) -> bool:
    """Tell whether nothing was found."""
    return not found_in(report).head(1)


def found_in(report: DataFrame) -> DataFrame:
    """Return the aggregates of which something was found."""
    return report.where(" + ".join(f"`{kind}`" for kind in FINDINGS) + " > 0")


def _count(condition: Column) -> Column:
    from pyspark.sql import functions as f

    return f.count(f.when(condition, 1))


def _write_html(report: DataFrame, path: str) -> None:
    from html import escape
    from pathlib import Path

    bad = found_in(report).limit(1000).collect()
    cells = "".join(
        "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in row) + "</tr>" for row in bad
    )
    heads = "".join(f"<th>{escape(name)}</th>" for name in report.columns)
    Path(path).write_text(
        "<!doctype html><meta charset='utf-8'><title>Audit</title>"
        "<style>body{font:16px system-ui;margin:2rem}td,th{padding:.3rem .8rem;text-align:left}"
        f"</style><h1>Audit</h1><p>{escape(summary(report))}</p>"
        f"<table><tr>{heads}</tr>{cells}</table>"
    )
