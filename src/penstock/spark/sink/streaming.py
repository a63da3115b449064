"""
The sink of a streaming query: the rows of its micro-batches.

Spark hands them over in Arrow's format since 4.1, and before that one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from penstock.spark.sink.sink import TaskReport, WritePlan, check, write

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

BATCH_ROWS = 4096


class StreamWriter(DataSourceStreamWriter):
    """Writes the rows of micro-batches, which come as record batches."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Publish the rows of one partition of one micro-batch."""
        context = _task_context()
        query = self._plan.sink.message_id_prefix or context.getLocalProperty(
            "sql.streaming.queryId"
        )
        batch = context.getLocalProperty("streaming.sql.batchId")
        return write(self._plan, f"{query}-{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """See that no row took another's id, and that none is there twice."""
        check(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the attempt that succeeds will find its ids taken."""


class RowWriter(StreamWriter):
    """Writes the rows of micro-batches, which come one by one."""

    def __init__(self, plan: WritePlan, schema: StructType) -> None:
        super().__init__(plan)
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> TaskReport:
        """Publish the rows of one partition of one micro-batch."""
        return super().write(record_batches(iterator, self._schema))


def new_writer(plan: WritePlan, schema: StructType) -> DataSourceStreamWriter:
    """Return a writer that takes rows as this version of Spark gives them."""
    arrow: type | None = getattr(datasource, "DataSourceStreamArrowWriter", None)
    if arrow is None:
        return RowWriter(plan, schema)
    # Spark tells by its base what a writer takes.
    kind = type("ArrowStreamWriter", (StreamWriter, arrow), {})
    writer: DataSourceStreamWriter = kind(plan)
    return writer


def record_batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield rows in Arrow's format, some thousand at a time."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    fields = to_arrow_schema(schema)
    while chunk := list(islice(rows, BATCH_ROWS)):
        found = [{name: _plain(row[name]) for name in fields.names} for row in chunk]
        yield pa.RecordBatch.from_pylist(found, schema=fields)


def _plain(value: Any) -> Any:
    """Return a value as Arrow takes it: structs as mappings, maps as pairs."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list):
        return [each.asDict() if hasattr(each, "asDict") else each for each in value]
    return value


def _task_context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a writer runs inside a task"
    return context
