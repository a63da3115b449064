"""
A table of aggregates that changes a little at a time: one row for each, and the newest counts.

    <target>/part-12-3f08c1d2/*.parquet    rows that batch 12 changed, sorted by aggregate
    <target>/manifest/12.json              the parts that are the table as of batch 12

A micro-batch writes the rows it changed as a part of its own, and then a manifest that names
this part and those before it. The manifest comes by a rename, so that a reader finds the table
before the batch or behind it, and nothing in between. A batch that is written again starts from
the manifest before it, whatever a failed attempt has left.

Parts are merged as they add up, small ones with small ones: a row is written again about as
often as the table doubles, and there are never many parts. Both keep the cost of a batch in
proportion to what it changes.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from penstock.spark.files import folder_of
from penstock.spark.pipelines.folder import Folder, read_record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "aggregate_id string, sequence bigint, events bigint, state string"
MANIFESTS = "manifest"
PARTS_MAX = 8
"""More parts than this are merged, as far as they are small."""
PAGE_ROWS = 200
LOOKUP_MAX = 500
"""Up to this number, aggregates are found by the index of the files; more by reading all ids."""
LOOKUP_SETTING = "spark.sql.parquet.pushdown.inFilterThreshold"


@dataclass(frozen=True)
class SnapshotPart:
    """A directory of Parquet files."""

    name: str
    rows: int


def read_snapshot(spark: SparkSession, target: str, *, before: int | None = None) -> DataFrame:
    """Return the newest snapshot, or the newest before a batch; empty if there is none."""
    folder = folder_of(spark, target)
    return _newest_rows(spark, folder, parts_of(folder, before=before))


def look_up(snapshot: DataFrame, aggregates: DataFrame) -> DataFrame:
    """Return the rows of some aggregates, given as a column of their ids, each once."""
    from pyspark.sql import functions as f

    found = [row[0] for row in aggregates.limit(LOOKUP_MAX + 1).collect()]
    if len(found) > LOOKUP_MAX:
        return snapshot.join(aggregates, "aggregate_id", "left_semi")
    snapshot.sparkSession.conf.set(LOOKUP_SETTING, str(LOOKUP_MAX))
    return snapshot.where(f.col("aggregate_id").isin(found))


def write_batch(changed: DataFrame, target: str, batch: int, *, keep: int) -> None:
    """Make the snapshot of a batch: the one before it, and the rows that changed."""
    folder = folder_of(changed.sparkSession, target)
    written = _write_part(changed, folder, batch)
    parts = [*parts_of(folder, before=batch), *([written] if written.rows else [])]
    first = merged_from([part.rows for part in parts])
    if first < len(parts):
        rows = _newest_rows(changed.sparkSession, folder, parts[first:])
        parts = [*parts[:first], _write_part(rows, folder, batch)]
    folder.replace(_manifest(batch), json.dumps([asdict(part) for part in parts]))
    _remove_old(folder, batch, keep)


def batches_of(folder: Folder) -> list[int]:
    """Return the batches whose snapshots are there, the newest last."""
    names = [path.rpartition("/")[2] for path in folder.find(_manifest("*"))]
    return sorted(int(name.removesuffix(".json")) for name in names)


def parts_of(folder: Folder, *, before: int | None = None) -> list[SnapshotPart]:
    """Return the parts of the newest snapshot, or of the newest before a batch."""
    found = [batch for batch in batches_of(folder) if before is None or batch < before]
    return _read_manifest(folder, found[-1]) if found else []


def merged_from(rows: list[int]) -> int:
    """Return the index of the first part to merge with all behind it; past the end for none."""
    first = len(rows)
    if first <= PARTS_MAX:
        return first
    first, behind = first - 2, rows[-1] + rows[-2]
    # What is much larger than all that came later is left alone.
    while first > 0 and rows[first - 1] <= 2 * behind:
        first -= 1
        behind += rows[first]
    return first


def _newest_rows(spark: SparkSession, folder: Folder, parts: list[SnapshotPart]) -> DataFrame:
    from pyspark.sql import functions as f

    if not parts:
        return spark.createDataFrame([], SCHEMA)
    rows = spark.read.schema(SCHEMA).parquet(*(folder.at(part.name) for part in parts))
    newest = f.max_by(f.struct("sequence", "events", "state"), "events").alias("newest")
    return rows.groupBy("aggregate_id").agg(newest).select("aggregate_id", "newest.*")


def _write_part(rows: DataFrame, folder: Folder, batch: int) -> SnapshotPart:
    """Write rows in the order of their ids, in small pages, so that some are found quickly."""
    name = f"part-{batch}-{uuid.uuid4().hex[:8]}"
    ordered = rows.repartition("aggregate_id").sortWithinPartitions("aggregate_id")
    ordered.write.option("parquet.page.row.count.limit", PAGE_ROWS).parquet(folder.at(name))
    written = rows.sparkSession.read.schema(SCHEMA).parquet(folder.at(name))
    return SnapshotPart(name, written.count())


def _remove_old(folder: Folder, batch: int, keep: int) -> None:
    """Remove old snapshots, those of a query that was started anew, and parts of none."""
    found = batches_of(folder)
    kept = [each for each in found if each <= batch][-keep:]
    for each in set(found) - set(kept):
        folder.remove(_manifest(each))
    named = {part.name for each in kept for part in _read_manifest(folder, each)}
    for name in folder.find("part-*"):
        if name not in named:
            folder.remove(name)


def _read_manifest(folder: Folder, batch: int) -> list[SnapshotPart]:
    return read_record(
        folder, _manifest(batch), lambda parts: [SnapshotPart(**part) for part in parts]
    )


def _manifest(batch: int | str) -> str:
    return f"{MANIFESTS}/{batch}.json"
