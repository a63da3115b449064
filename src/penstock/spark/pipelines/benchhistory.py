"""bench-history: the lines that `penstock bench` keeps, as a table of trends and as plots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.plots import Plot, page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "history": "File of results; where `penstock bench` keeps them.",
    "page": "File to draw the trends into, one page of HTML; none.",
}
SHAPE = ("machine", "server", "scenario", "publishers", "subscribers", "messages", "size_bytes")
SCHEMA = (
    "time string, machine string, server string, version string, scenario string,"
    " publishers int, subscribers int, messages bigint, size_bytes bigint, rate double,"
    " resident_bytes bigint"
)


def run(spark: SparkSession, config: PipelineConfig) -> DataFrame:
    """Return the trend of every shape, and write it to `target` as Parquet."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    history = str(config.setting("history", Path(data, "penstock", "bench.jsonl")))
    results = spark.read.schema(SCHEMA).json(history)
    table = trends(results)
    if config.target:
        table.write.mode("overwrite").parquet(config.target)
    if config.setting("page"):
        Path(str(config.setting("page"))).write_text(drawn(results))
    return table


def drawn(results: DataFrame) -> str:
    """Return a page with a line for each shape: messages a second from run to run."""
    from pyspark.sql import functions as f

    points = f.sort_array(f.collect_list(f.struct("time", "rate"))).alias("points")
    shapes = results.groupBy(*SHAPE).agg(points).orderBy("scenario", "server", *SHAPE)
    return page(
        "Benchmarks over time, messages a second",
        [
            Plot(
                f"{row.scenario} on {row.server}",
                f"{row.publishers} publishers, {row.subscribers} subscribers, "
                f"{row.messages} messages of {row.size_bytes} bytes; {row.machine}",
                [(point.time, point.rate) for point in row.points],
            )
            for row in shapes.collect()
        ],
    )


def trends(results: DataFrame) -> DataFrame:
    """Compare, for each shape, the newest result with the median of the ten before it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    shape = Window.partitionBy(*SHAPE).orderBy("time")
    earlier = shape.rowsBetween(-10, -1)
    compared = results.withColumns(
        {
            "usual": f.percentile_approx("rate", 0.5).over(earlier),
            "runs": f.count("*").over(Window.partitionBy(*SHAPE)),
            "newest": f.row_number().over(Window.partitionBy(*SHAPE).orderBy(f.desc("time"))),
        }
    )
    newest = compared.where("newest = 1").withColumn("change", f.col("rate") / f.col("usual") - 1)
    return newest.select(*SHAPE, "version", "time", "runs", "rate", "usual", "change").orderBy(
        "scenario", "server"
    )
