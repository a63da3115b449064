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
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.spark.pipelines.lake import write_durably

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "aggregate_id string, sequence bigint, events bigint, state string"
MANIFESTS = "manifest"
PARTS_MAX = 8
"""More parts than this are merged, as far as they are small."""
PAGE_ROWS = 200
LOOKUP_MAX = 500
"""Up to so many aggregates are looked up by the index of the files; more by reading their ids."""
LOOKUP_SETTING = "spark.sql.parquet.pushdown.inFilterThreshold"


@dataclass(frozen=True)
class Part:
    """A directory of Parquet files."""

    name: str
    rows: int


def read_snapshot(spark: SparkSession, root: Path, *, before: int | None = None) -> DataFrame:
    """Return the newest snapshot, or the newest before a batch; empty if there is none."""
    return _newest_rows(spark, root, parts_of(root, before=before))


def look_up(snapshot: DataFrame, aggregates: DataFrame) -> DataFrame:
    """Return the rows of some aggregates, given as a column of their ids, each once."""
    from pyspark.sql import functions as f

    found = [row[0] for row in aggregates.limit(LOOKUP_MAX + 1).collect()]
    if len(found) > LOOKUP_MAX:
        return snapshot.join(aggregates, "aggregate_id", "left_semi")
    snapshot.sparkSession.conf.set(LOOKUP_SETTING, str(LOOKUP_MAX))
    return snapshot.where(f.col("aggregate_id").isin(found))


def write_batch(changed: DataFrame, root: Path, batch: int, *, keep: int) -> None:
    """Make the snapshot of a batch: the one before it, and the rows that changed."""
    written = _write_part(changed, root, batch)
    parts = [*parts_of(root, before=batch), *([written] if written.rows else [])]
    first = merged_from([part.rows for part in parts])
    if first < len(parts):
        rows = _newest_rows(changed.sparkSession, root, parts[first:])
        parts = [*parts[:first], _write_part(rows, root, batch)]
    _publish(root, batch, parts)
    _remove_old(root, batch, keep)


def batches_of(root: Path) -> list[int]:
    """Return the batches whose snapshots are there, the newest last."""
    return sorted(int(path.stem) for path in (root / MANIFESTS).glob("*.json"))


def parts_of(root: Path, *, before: int | None = None) -> list[Part]:
    """Return the parts of the newest snapshot, or of the newest before a batch."""
    found = [batch for batch in batches_of(root) if before is None or batch < before]
    if not found:
        return []
    return [Part(**part) for part in json.loads(_manifest(root, found[-1]).read_text())]


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


def _newest_rows(spark: SparkSession, root: Path, parts: list[Part]) -> DataFrame:
    from pyspark.sql import functions as f

    if not parts:
        return spark.createDataFrame([], SCHEMA)
    rows = spark.read.schema(SCHEMA).parquet(*(str(root / part.name) for part in parts))
    newest = f.max_by(f.struct("sequence", "events", "state"), "events").alias("newest")
    return rows.groupBy("aggregate_id").agg(newest).select("aggregate_id", "newest.*")


def _write_part(rows: DataFrame, root: Path, batch: int) -> Part:
    """Write rows in the order of their ids, in small pages, so that some are found quickly."""
    import pyarrow.parquet as pq

    name = f"part-{batch}-{uuid.uuid4().hex[:8]}"
    ordered = rows.repartition("aggregate_id").sortWithinPartitions("aggregate_id")
    ordered.write.option("parquet.page.row.count.limit", PAGE_ROWS).parquet(str(root / name))
    files = (root / name).glob("*.parquet")
    return Part(name, sum(pq.read_metadata(file).num_rows for file in files))


def _publish(root: Path, batch: int, parts: list[Part]) -> None:
    manifest = _manifest(root, batch)
    manifest.parent.mkdir(exist_ok=True)
    write_durably(manifest, json.dumps([asdict(part) for part in parts]))


def _remove_old(root: Path, batch: int, keep: int) -> None:
    """Remove old snapshots, those of a query that was started anew, and parts of none."""
    kept = [each for each in batches_of(root) if each <= batch][-keep:]
    for each in set(batches_of(root)) - set(kept):
        _manifest(root, each).unlink()
    named = {
        part["name"] for each in kept for part in json.loads(_manifest(root, each).read_text())
    }
    for path in root.glob("part-*"):
        if path.name not in named:
            shutil.rmtree(path, ignore_errors=True)


def _manifest(root: Path, batch: int) -> Path:
    return root / MANIFESTS / f"{batch}.json"
