"""
The lake: a Parquet table by topic and date, made of micro-batches that are written once.

    <lake>/topic=orders.eu/date=2026-11-15/batch=12/part-….parquet

A micro-batch owns its own directories, so that writing it again replaces what a
failed attempt left, and every reader of Parquet sees each row once. Compaction
merges the batches of a day into one directory. What it is about to do stands in a
journal first, and whoever comes next finishes it. Whoever reads at that moment may
miss the day.
"""

from __future__ import annotations

import json
import uuid
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.spark.envelopes.envelope import FIELDS
from penstock.spark.files import folder_of
from penstock.spark.pipelines.folder import Folder, read_record
from penstock.spark.pipelines.ownership import OWNER
from penstock.spark.source.schema import TYPES, ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPACTION = "_compaction"
COLUMNS = {
    **TYPES,
    **FIELDS,
    "payload": "string",
    "topic": "string",
    "date": "date",
    "batch": "int",
}


def write_batch(rows: DataFrame, lake: str, batch: int, *, topic_tokens: int = 0) -> None:
    """Write the rows of a micro-batch; doing it again changes nothing."""
    from pyspark.sql import functions as f

    subject = f.col("subject")
    (
        rows.withColumn(
            "topic", f.substring_index(subject, ".", topic_tokens) if topic_tokens else subject
        )
        .withColumn("date", f.to_date("time"))
        .withColumn("batch", f.lit(batch))
        # One file for each topic and day, its rows in order.
        .repartition("topic", "date")
        .sortWithinPartitions("topic", "date", "sequence")
        .write.partitionBy("topic", "date", "batch")
        .option("partitionOverwriteMode", "dynamic")
        .mode("overwrite")
        .parquet(lake)
    )


def forget_batch(folder: Folder, batch: int) -> None:
    """Remove what an earlier attempt has left of a batch."""
    for written in folder.find(f"topic=*/date=*/batch={batch}"):
        folder.remove(written)


def read_lake(spark: SparkSession, lake: str) -> DataFrame:
    """Return the rows of a lake, whatever schemas its files have."""
    from pyspark.sql.types import StringType, StructField, StructType

    folder = folder_of(spark, lake)
    if not folder.find("*"):
        raise ConfigError(f"there is no lake at `{lake}`; hint: the `target` of an `archive`")
    if folder.find(OWNER) and not folder.find("topic=*"):
        # Its archive has begun, and found no messages yet.
        return spark.createDataFrame([], ddl(tuple(COLUMNS), COLUMNS))
    found = spark.read.option("mergeSchema", "true").parquet(lake).schema
    # Spark takes `topic=1.10` for a number.
    fields = [
        StructField("topic", StringType()) if field.name == "topic" else field for field in found
    ]
    return spark.read.schema(StructType(fields)).parquet(lake)


def compact(spark: SparkSession, lake: str, *, batches_min: int) -> int:
    """Merge the batches of each topic and day with at least `batches_min`; return how many days."""
    folder = folder_of(spark, lake)
    recover(folder)
    found = folder.find("topic=*/date=*/batch=*")
    newest = max(map(_number, found), default=0)
    # After a crash the newest batch is written again, and would replace what it is part of.
    older = [batch for batch in found if _number(batch) < newest]
    days = groupby(older, key=lambda batch: batch.rpartition("/")[0])
    merges = [sorted(batches, key=_number) for _, batches in days]
    merges = [batches for batches in merges if len(batches) >= batches_min]
    for batches in merges:
        _merge(spark, folder, batches)
    return len(merges)


def recover(folder: Folder) -> None:
    """Finish the compactions that were begun: their journals say what is left to do."""
    for journal in folder.find(f"{COMPACTION}/*.json"):
        _carry_out(folder, journal)


def _number(batch: str) -> int:
    return int(batch.rpartition("batch=")[2])


def _merge(spark: SparkSession, folder: Folder, batches: list[str]) -> None:
    """Make one directory of several, all of one topic and day."""
    merged = f"{COMPACTION}/{uuid.uuid4().hex}"
    rows = spark.read.option("mergeSchema", "true").parquet(*map(folder.at, batches))
    rows.coalesce(1).sortWithinPartitions("sequence").write.parquet(folder.at(merged))
    (file,) = folder.find(f"{merged}/*.parquet")
    name = file.rpartition("/")[2]
    plan = {"merged": merged, "file": name, "replaces": batches, "becomes": batches[-1]}
    journal = f"{merged}.json"
    folder.replace(journal, json.dumps(plan))
    _carry_out(folder, journal)


def _carry_out(folder: Folder, journal: str) -> None:
    """Do what is not done yet; each step may have been done before, a copy in part."""
    merged, file, replaces, becomes = read_record(
        folder, journal, itemgetter("merged", "file", "replaces", "becomes")
    )
    if not folder.find(f"{becomes}/{file}"):
        for replaced in replaces:
            folder.remove(replaced)
        folder.rename(merged, becomes)
    # An object store renames by copying.
    folder.remove(merged)
    folder.remove(journal)
