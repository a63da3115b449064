"""From the columns that `collect_deliveries` gathers to Arrow arrays, without copying them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.hot.deliveries import Columns
from penstock.spark.source.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


def record_batch(columns: Columns, names: Sequence[str], stream: str) -> pa.RecordBatch:
    """Return the rows as Spark wants them."""
    import pyarrow as pa

    schema = arrow_schema(names)
    arrays = [_array(columns, field, stream) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(columns: Columns, field: pa.Field, stream: str) -> pa.Array:
    import pyarrow as pa

    count = columns.row_count
    match field.name:
        case "subject":
            return _text(count, columns.subject_offsets, columns.subjects)
        case "data":
            return _binary(pa.binary(), count, columns.data_offsets, columns.data)
        case "headers":
            return _headers(columns, field.type)
        case "stream":
            return pa.repeat(pa.scalar(stream), count)
        case "sequence":
            return _numbers(pa.int64(), count, columns.sequences)
        case "time":
            return _numbers(field.type, count, columns.times)
    raise AssertionError(f"`{field.name}` is no column of the schema")


def _headers(columns: Columns, kind: Any) -> pa.Array:
    import pyarrow as pa

    count = len(columns.key_offsets) // 4 - 1
    keys = _text(count, columns.key_offsets, columns.keys)
    values = _text(count, columns.value_offsets, columns.values)
    pairs = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    buffers = [None, pa.py_buffer(columns.header_offsets)]
    return pa.Array.from_buffers(kind, columns.row_count, buffers, children=[pairs])


def _numbers(kind: Any, count: int, data: bytes) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _binary(kind: Any, count: int, offsets: bytes, data: bytes) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _text(count: int, offsets: bytes, data: bytes) -> pa.Array:
    """Return strings. NATS takes any bytes for a subject, Spark only UTF-8."""
    import pyarrow as pa

    array = _binary(pa.string(), count, offsets, data)
    if data.isascii():
        return array
    rows = _binary(pa.binary(), count, offsets, data).to_pylist()
    return pa.array([row.decode(errors="replace") for row in rows], pa.string())
