"""metrics: counts, rates, sizes and latencies of each topic, window by window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.spark.envelopes.envelope import open_events
from penstock.spark.files import files_of
from penstock.spark.kafka import follow_into_topic, is_kafka
from penstock.spark.options import connection_of
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.ownership import claim_target, query_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SETTINGS = {
    "window": "Length of a window; 1 minute.",
    "lateness": "How late a message may come to be counted in its window; 1 minute.",
    "subject": "Subject, on Kafka topic, to publish the figures to; else they go to `target`.",
}


def start(spark: SparkSession, messages: DataFrame, config: PipelineConfig) -> DataStreamWriter:
    """Write the figures of every window once it is over."""
    config.need("checkpoint")
    window = config.duration("window", "1 minute")
    figures = measure(messages, window, config.duration("lateness", "1 minute", may_be_none=True))
    if config.setting("subject"):
        query = query_of(files_of(spark), config.checkpoint)
        return publish(figures, config.source, str(config.setting("subject")), query)
    claim_target(spark, config)
    return figures.writeStream.format("parquet").option("path", config.target).outputMode("append")


def publish(
    figures: DataFrame, source: Mapping[str, str], subject: str, query: str
) -> DataStreamWriter:
    """Publish every row as JSON, to where the messages come from, under ids of the query's own."""
    if is_kafka(source):
        rows = figures.selectExpr("topic AS key", "to_json(struct(*)) AS data")
        return follow_into_topic(rows, source, subject).outputMode("append")
    window = "cast(unix_micros(start) AS string), cast(unix_micros(end) AS string)"
    rows = figures.selectExpr(
        "to_json(struct(*)) AS data",
        f"concat_ws('-', 'metrics', '{query}', topic, {window}) AS message_id",
    )
    writer = rows.writeStream.format("penstock").options(**connection_of(source))
    return writer.option("subject", subject).outputMode("append")


def measure(messages: DataFrame, window: str, lateness: str) -> DataFrame:
    """Return one row for each topic and window. Latency is from the event's own time on."""
    from pyspark.sql import functions as f

    latency_ms = (f.col("time").cast("double") - f.col("timestamp").cast("double")) * 1000
    events = open_events(messages).withColumn("latency_ms", latency_ms)
    groups = events.withWatermark("time", lateness).groupBy(
        f.window("time", window), f.col("subject").alias("topic")
    )
    figures = groups.agg(
        f.count("*").alias("messages"),
        f.sum(f.length("data")).alias("bytes"),
        f.percentile_approx("latency_ms", [0.5, 0.9, 0.99], 1000).alias("latency"),
    )
    seconds = f.col("window.end").cast("double") - f.col("window.start").cast("double")
    return figures.select(
        f.col("window.start").alias("start"),
        f.col("window.end").alias("end"),
        "topic",
        "messages",
        "bytes",
        (f.col("messages") / seconds).alias("messages_per_second"),
        f.col("latency")[0].alias("latency_ms_50"),
        f.col("latency")[1].alias("latency_ms_90"),
        f.col("latency")[2].alias("latency_ms_99"),
    )
