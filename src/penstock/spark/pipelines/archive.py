"""archive: topics into a Parquet lake by topic and date, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.envelopes.envelope import open_events
from penstock.spark.files import folder_of
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.lake import compact, forget_batch, recover, write_batch
from penstock.spark.pipelines.ownership import claim_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SETTINGS = {
    "topic_tokens": "First tokens of a subject that are its topic; all. A topic is a directory.",
    "compact_batches": "Batches of one topic and day that are merged into one file; 50, 0 never.",
}
COMPACT_BATCHES = 50


def start(spark: SparkSession, messages: DataFrame, config: PipelineConfig) -> DataStreamWriter:
    """Write every micro-batch once, and merge small files now and then."""
    lake = config.target
    batches_min = config.number("compact_batches", COMPACT_BATCHES)
    tokens = config.number("topic_tokens", 0)
    claim_target(spark, config)
    recover(folder_of(spark, lake))
    written: list[int] = []

    def write(rows: DataFrame, batch: int) -> None:
        if not written:
            # It may have been written before a crash, to other directories by other settings.
            forget_batch(folder_of(spark, lake), batch)
        written[:] = [batch]
        write_batch(open_events(rows), lake, batch, topic_tokens=tokens)
        if batches_min and batch % batches_min == batches_min - 1:
            compact(rows.sparkSession, lake, batches_min=batches_min)

    return messages.writeStream.foreachBatch(write)
