"""
state: fold events into the current state of each aggregate.

The state of an aggregate behind a micro-batch is the fold of its state before it and its events
in the batch, in order of their sequence. Only aggregates with events are read and written; the
table they are part of is a `snapshot`, in which every event is seen exactly once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.errors import ConfigError
from penstock.spark.envelopes.envelope import open_events
from penstock.spark.pipelines.config import PipelineConfig
from penstock.spark.pipelines.ownership import claim_target
from penstock.spark.pipelines.snapshot import SCHEMA, look_up, read_snapshot, write_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Fold: TypeAlias = Callable[[dict[str, Any] | None, dict[str, Any]], dict[str, Any]]
"""Takes the state of an aggregate, None at first, and an event; returns the new state."""

SETTINGS = {
    "fold": "Your function, `module:function`: (state or None, event) -> state. Required.",
    "keep": "Snapshots that are kept, at least 2; 3.",
}
KEEP, KEEP_MIN = 3, 2
EVENT = (
    *("event_id", "event_type", "event_version", "aggregate_id"),
    *("subject", "sequence", "timestamp", "payload"),
)
ROWS_MAX = 10_000


def start(spark: SparkSession, messages: DataFrame, config: PipelineConfig) -> DataStreamWriter:
    """Make a new snapshot of every micro-batch."""
    config.need("target", "checkpoint")
    fold = find_function(str(config.setting("fold", "")))
    # A batch that is written again starts from the snapshot before it.
    keep = config.number("keep", KEEP, least=KEEP_MIN)
    claim_target(spark, config)

    def write(rows: DataFrame, batch: int) -> None:
        events = events_of(rows).persist()
        before = read_snapshot(rows.sparkSession, config.target, before=batch)
        known = look_up(before, events.select("aggregate_id").distinct())
        write_batch(fold_batch(known, events, fold), config.target, batch, keep=keep)
        events.unpersist()

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


def events_of(rows: DataFrame) -> DataFrame:
    """Return the messages that are events of an aggregate, with the columns a fold is given."""
    from pyspark.sql import functions as f

    events = open_events(rows).where(f.col("aggregate_id").isNotNull())
    return events.withColumn("timestamp", f.col("timestamp").cast("string")).select(*EVENT)


def fold_batch(before: DataFrame, events: DataFrame, fold: Fold) -> DataFrame:
    """Return the new state of all aggregates that have events."""
    from pyspark.sql import functions as f

    # An aggregate's row of the table comes first, and only it counts events.
    rows = before.unionByName(events, allowMissingColumns=True)
    ordered = rows.repartition("aggregate_id").sortWithinPartitions(
        "aggregate_id", f.asc_nulls_last("events"), "sequence"
    )

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _fold_rows(fold, batches)

    return ordered.mapInArrow(apply, SCHEMA)


def _fold_rows(fold: Fold, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fold rows that are sorted by aggregate; return one for each."""
    import pyarrow as pa

    schema = pa.schema(
        {
            "aggregate_id": pa.string(),
            "sequence": pa.int64(),
            "events": pa.int64(),
            "state": pa.string(),
        }
    )
    rows = (row for batch in batches for row in batch.to_pylist())
    groups = groupby(rows, key=itemgetter("aggregate_id"))
    folded = (_fold_group(fold, aggregate, group) for aggregate, group in groups)
    while chunk := list(islice(folded, ROWS_MAX)):
        yield pa.RecordBatch.from_pylist(chunk, schema=schema)


def _fold_group(fold: Fold, aggregate: str, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    state, sequence, events = None, 0, 0
    for row in rows:
        sequence = row["sequence"]
        if row["events"] is not None:
            state, events = json.loads(row["state"]), row["events"]
            continue
        event = {name: row[name] for name in EVENT}
        event["payload"] = json.loads(row["payload"]) if row["payload"] else None
        state, events = fold(state, event), events + 1
    return {
        "aggregate_id": aggregate,
        "sequence": sequence,
        "events": events,
        "state": json.dumps(state),
    }
