"""
The lake: a Parquet table by topic and date, made of micro-batches that are written once.

    <lake>/topic=orders.eu/date=2026-11-15/batch=12/part-….parquet

A micro-batch owns its own directories, so that writing it again replaces what a
failed attempt left, and every reader of Parquet sees each row once. Compaction
merges the batches of a day into one directory. What it is about to do stands in a
journal first, and whoever comes next finishes it.
"""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import ConfigError
from penstock.files import replace_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPACTION = "_compaction"


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


def read_lake(spark: SparkSession, lake: str) -> DataFrame:
    """Return the rows of a lake, whatever schemas its files have."""
    from pyspark.sql.types import StringType, StructField, StructType

    found = spark.read.option("mergeSchema", "true").parquet(lake).schema
    # Spark takes `topic=1.10` for a number.
    fields = [
        StructField("topic", StringType()) if field.name == "topic" else field for field in found
    ]
    return spark.read.schema(StructType(fields)).parquet(lake)


def compact(spark: SparkSession, lake: str, *, batches_min: int) -> int:
    """Merge the batches of each topic and day that has at least so many; return how many had."""
    root = local_path(lake)
    recover(root)
    newest = max((_number(batch) for day in _days(root) for batch in _batches(day)), default=0)
    merges = []
    for day in _days(root):
        # After a crash the newest batch is written again, and would replace what it is part of.
        batches = [batch for batch in _batches(day) if _number(batch) < newest]
        if len(batches) >= batches_min:
            merges.append(batches)
    for batches in merges:
        _merge(spark, root, batches)
    return len(merges)


def recover(root: Path) -> None:
    """Finish the compactions that were begun: their journals say what is left to do."""
    for journal in sorted((root / COMPACTION).glob("*.json")):
        _carry_out(root, journal)


def local_path(lake: str) -> Path:
    """Return the directory of a lake on this machine."""
    if "://" in lake and not lake.startswith("file://"):
        raise ConfigError(f"compaction needs a directory, not `{lake}`; hint: compact it elsewhere")
    return Path(lake.removeprefix("file://"))


def _days(root: Path) -> list[Path]:
    return sorted(root.glob("topic=*/date=*"))


def _batches(day: Path) -> list[Path]:
    return sorted(day.glob("batch=*"), key=_number)


def _number(batch: Path) -> int:
    return int(batch.name.removeprefix("batch="))


def _merge(spark: SparkSession, root: Path, batches: list[Path]) -> None:
    """Make one directory of several, all of one topic and day."""
    identity = uuid.uuid4().hex
    merged = root / COMPACTION / identity
    rows = spark.read.option("mergeSchema", "true").parquet(*map(str, batches))
    rows.coalesce(1).sortWithinPartitions("sequence").write.parquet(str(merged))
    plan = {
        "merged": str(merged.relative_to(root)),
        "replaces": [str(batch.relative_to(root)) for batch in batches],
        "becomes": str(batches[-1].relative_to(root)),
    }
    journal = root / COMPACTION / f"{identity}.json"
    write_durably(journal, json.dumps(plan))
    _carry_out(root, journal)


def _carry_out(root: Path, journal: Path) -> None:
    """Do what is not done yet; each step may have been done before."""
    plan = json.loads(journal.read_text())
    merged = root / plan["merged"]
    if merged.exists():
        for replaced in plan["replaces"]:
            shutil.rmtree(root / replaced, ignore_errors=True)
        merged.rename(root / plan["becomes"])
    journal.unlink()


def write_durably(path: Path, text: str) -> None:
    """Write a file that is there as a whole or not at all, also after a power cut."""
    replace_file(path, text, durable=True)
