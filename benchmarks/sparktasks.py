"""
The cost of a task: a batch of 200 small ones, ours beside two sources that have next to nothing
to do.

A source in the JVM shows what Spark itself takes for a task, and one in Python that makes up the
same rows what PySpark's worker takes. What is left is ours: to find the stream, to make a
consumer, to fetch, to look for losses, and to delete the consumer.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.sparkstream import STREAM, processor_times, spent_s
from penstock.net.process import ServerProcess
from penstock.spark.source.schema import COLUMNS, TYPES, ddl

if TYPE_CHECKING:
    import pyarrow as pa

TASKS = 200
ROWS = 100
"""Rows of a task: so few that reading them is next to nothing."""


ROW = {
    "subject": f"{STREAM}.1",
    "data": b"x" * 200,
    "headers": [],
    "stream": STREAM,
    "sequence": 1,
    "time": datetime(2026, 11, 15, tzinfo=UTC),
}


class Cost(NamedTuple):
    """What a batch of these tasks takes."""

    source: str
    task_ms: float
    cpu_ms: float


class MadeUp(DataSource):
    """Makes up rows as ours has them."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "made-up"

    def schema(self) -> str:
        """Return the columns."""
        return ddl(COLUMNS, TYPES)

    def reader(self, schema: Any) -> DataSourceReader:
        """Read once."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        rows = pa.RecordBatch.from_pylist(
            [ROW] * ROWS, schema=to_arrow_schema(schema, timezone="UTC")
        )
        return MadeUpReader(rows)


class MadeUpReader(DataSourceReader):
    """Gives every task the same rows."""

    def __init__(self, rows: "pa.RecordBatch") -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        """Return as many as there are to be tasks."""
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """Return them as they are."""
        yield self._rows


def run(spark: Any, server: ServerProcess, rounds: int) -> Iterator[Cost]:
    """Measure in turns; yield the median round of each."""
    spark.dataSource.register(MadeUp)
    reader = spark.read.format("penstock").option("servers", server.url).option("stream", STREAM)
    frames = {
        "in the JVM, spark.range": spark.range(0, TASKS * ROWS, 1, TASKS),
        "in Python, made-up rows": spark.read.format("made-up").load(),
        "penstock": reader.option("endingPosition", TASKS * ROWS)
        .option("minPartitions", TASKS)
        .load(),
    }
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in frames}
    assert all(TASKS == frame.rdd.getNumPartitions() for frame in frames.values())
    for number in range(rounds + 1):
        for name, frame in frames.items():
            measured = _once(frame)
            # In the first one the JVM loads classes, and workers are started.
            if number:
                costs[name].append(measured)
    for name, measured_rounds in costs.items():
        wall_s, cpu_s = (median(each) for each in zip(*measured_rounds, strict=True))
        yield Cost(name, wall_s / TASKS * 1e3, cpu_s / TASKS * 1e3)


def _once(frame: Any) -> tuple[float, float]:
    before, started_s = processor_times(), time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - started_s, spent_s(before, processor_times())
