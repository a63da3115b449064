"""
state: fold events into the current state of each aggregate.

A snapshot is a directory of Parquet, one row for each aggregate, named after the
micro-batch that made it: version n is the fold of version n - 1 and the rows of
batch n. So making it again gives the same, and a reader of the newest finished one
sees every event exactly once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import ConfigError
from penstock.spark.envelope import open_envelopes
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.lake import local_path

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Fold: TypeAlias = Callable[[dict[str, Any] | None, dict[str, Any]], dict[str, Any]]
"""Takes the state of an aggregate, None at first, and an event; returns the new state."""

SETTINGS = {
    "fold": "Your function, `module:function`: (state or None, event) -> state. Required.",
    "keep": "Snapshots that are kept; 3.",
}
SCHEMA = "aggregate_id string, sequence bigint, events bigint, state string"
EVENT = ("event_id", "event_type", "event_version", "aggregate_id", "subject", "sequence")
DONE = "_SUCCESS"


def start(spark: SparkSession, messages: DataFrame, config: PipelineConfig) -> DataStreamWriter:
    """Make a new snapshot of every micro-batch."""
    config.need("target", "checkpoint")
    fold = find_function(str(config.setting("fold", "")))
    root = local_path(config.target)
    keep = int(config.setting("keep", 3))

    def write(rows: DataFrame, batch: int) -> None:
        before = read_snapshot(rows.sparkSession, root, before=batch)
        after = fold_batch(before, rows, fold)
        after.write.mode("overwrite").parquet(str(root / f"version={batch}"))
        for version in versions(root)[:-keep]:
            shutil.rmtree(root / f"version={version}", ignore_errors=True)

    return messages.writeStream.foreachBatch(write)


def find_function(name: str) -> Any:
    """Import `module:function`."""
    module, colon, function = name.partition(":")
    if not colon:
        raise ConfigError(f"`{name}` is no function; hint: write `module:function`")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"`{name}` cannot be found: {error}") from None


def versions(root: Path) -> list[int]:
    """Return the finished snapshots, the newest last."""
    return sorted(int(path.parent.name.split("=")[1]) for path in root.glob(f"version=*/{DONE}"))


def read_snapshot(spark: SparkSession, root: Path, *, before: int | None = None) -> DataFrame:
    """Return the newest snapshot, or the newest before a batch; empty if there is none."""
    found = [version for version in versions(root) if before is None or version < before]
    if not found:
        return spark.createDataFrame([], SCHEMA)
    return spark.read.schema(SCHEMA).parquet(str(root / f"version={found[-1]}"))


def fold_batch(before: DataFrame, rows: DataFrame, fold: Fold) -> DataFrame:
    """Return the state behind the rows, taken in order of their sequence."""
    from pyspark.sql import functions as f

    events = open_envelopes(rows).where(f.col("aggregate_id").isNotNull())
    events = events.select(*EVENT, "payload", f.col("timestamp").cast("string").alias("timestamp"))

    def apply(key: tuple[str], old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
        return _apply(fold, str(key[0]), old, new)

    return (
        before.groupBy("aggregate_id")
        .cogroup(events.groupBy("aggregate_id"))
        .applyInPandas(apply, SCHEMA)
    )


def _apply(fold: Fold, aggregate: str, old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    state = json.loads(old["state"].iloc[0]) if len(old) else None
    sequence = int(old["sequence"].iloc[0]) if len(old) else 0
    events = int(old["events"].iloc[0]) if len(old) else 0
    for event in new.sort_values("sequence").to_dict("records"):
        event["payload"] = json.loads(event["payload"]) if event["payload"] else None
        state = fold(state, event)
        sequence, events = int(event["sequence"]), events + 1
    row = (aggregate, sequence, events, json.dumps(state))
    return pd.DataFrame([row], columns=["aggregate_id", "sequence", "events", "state"])
