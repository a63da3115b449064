"""
audit: gaps, duplicates and reordering between what was published and what was archived.

Looks at every message, on both sides, before it says that nothing is wrong. What
was handled can be compared too: any Parquet table with `event_id`, `aggregate_id`
and `position`, a number that grows in the order of handling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.envelope import open_envelopes
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
KINDS = ("published", "archived", "missing", "duplicated", "foreign", "handled", "out of order")


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
    place = ["aggregate", "stream", "sequence"]
    ours = published.select(key, "stream", "sequence", f.lit(1).alias("published"))
    theirs = archived.select(key, "stream", "sequence").groupBy(*place)
    both = ours.join(theirs.agg(f.count("*").alias("archived")), place, "full")
    counts = both.groupBy("aggregate").agg(
        f.count("published").alias("published"),
        f.coalesce(f.sum("archived"), f.lit(0)).alias("archived"),
        _count(f.col("archived").isNull()).alias("missing"),
        _count(f.col("archived") > 1).alias("duplicated"),
        _count(f.col("published").isNull()).alias("foreign"),
    )
    order = _handled_order(published, handled)
    return counts.join(order, "aggregate", "left").na.fill(0).orderBy("aggregate")


def _handled_order(published: DataFrame, handled: DataFrame | None) -> DataFrame:
    """Count, for each aggregate, what was handled after something that was published later."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if handled is None:
        empty = published.limit(0).select(f.col("subject").alias("aggregate"))
        return empty.withColumn("handled", f.lit(0)).withColumn("out of order", f.lit(0))
    positions = handled.select("event_id", "aggregate_id", "position")
    sequences = published.select("event_id", "sequence")
    before = (
        Window.partitionBy("aggregate_id")
        .orderBy("position")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    seen = positions.join(sequences, "event_id").withColumn(
        "latest", f.max("sequence").over(before)
    )
    return seen.groupBy(f.col("aggregate_id").alias("aggregate")).agg(
        f.count("*").alias("handled"),
        _count(f.col("sequence") < f.col("latest")).alias("out of order"),
    )


def summary(report: DataFrame) -> str:
    """Return the totals in one line; it speaks only of what was looked at."""
    from pyspark.sql import functions as f

    totals = report.agg(*[f.coalesce(f.sum(kind), f.lit(0)).alias(kind) for kind in KINDS]).first()
    assert totals is not None
    counts = ", ".join(f"{totals[kind]:,} {kind}" for kind in KINDS)
    return f"{report.count():,} aggregates: {counts}"


def _count(condition: Column) -> Column:
    from pyspark.sql import functions as f

    return f.count(f.when(condition, 1))


def _write_html(report: DataFrame, path: str) -> None:
    from html import escape
    from pathlib import Path

    bad = report.where("missing + duplicated + foreign + `out of order` > 0").limit(1000).collect()
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
