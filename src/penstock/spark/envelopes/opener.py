"""Record batches of messages, with the envelope in `data` opened into columns of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import InvalidEnvelope
from penstock.protocol.compression import decompress, is_compressed
from penstock.spark.envelopes.envelope import (
    DECOMPRESSED,
    FIELDS,
    compressed_only,
    decompress_column,
)
from penstock.spark.envelopes.payload import Decoder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PAYLOAD = "payload"
PART_BYTES = 64 * 1024 * 1024
"""Payloads that are open at the same time, in bytes, and one message more."""

UNFIT = (ValueError, TypeError, OverflowError, ArithmeticError)
"""Errors of Arrow for a value that does not fit its column; its own errors are ValueErrors."""


class Opener(Protocol):
    """Makes what the schema asks for of what a reader has read."""

    def open(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches as the schema has them."""


class Decompressor:
    """Puts what is compressed into a column of its own too, as it was before."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)

    def open(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with their columns in this order."""
        for batch in batches:
            opened = decompress_column(compressed_only(batch.column("data")))
            yield batch.append_column(DECOMPRESSED, opened).select(self._columns)


class EnvelopeOpener:
    """Opens the envelopes of a reader. What is no envelope has nulls."""

    def __init__(self, schema: StructType, decoder: Decoder) -> None:
        self._schema = schema
        self._decoder = decoder

    def open(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches as the schema has them."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        envelopes = _reader()
        read_payload = None
        if PAYLOAD in schema.names:
            read_payload = self._decoder.prepare(self._schema[PAYLOAD].dataType)
        for batch in batches:
            for part, rows in _parts(batch, envelopes):
                arrays = [_column(field, part, rows, read_payload) for field in schema]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parts(batch: pa.RecordBatch, read: Any) -> Iterator[tuple[pa.RecordBatch, list[Any]]]:
    """Read a batch in parts that are bounded also if its messages are compressed to nothing."""
    rows: list[Any] = []
    start = size = 0
    for index, data in enumerate(batch.column("data").to_pylist()):
        row = read(data)
        size += 0 if row is None else len(bytes(row.payload))
        rows.append(row)
        if size > PART_BYTES:
            yield batch.slice(start, len(rows)), rows
            rows, start, size = [], index + 1, 0
    if rows or not start:
        yield batch.slice(start), rows


def _column(field: pa.Field, batch: pa.RecordBatch, rows: list[Any], read_payload: Any) -> pa.Array:
    import pyarrow as pa

    if field.name == PAYLOAD:
        values = [None if row is None else read_payload(bytes(row.payload)) for row in rows]
    elif field.name in FIELDS:
        values = [None if row is None else _field(row, field.name) for row in rows]
    else:
        return batch.column(field.name)
    try:
        return pa.array(values, field.type)
    except UNFIT:
        return pa.array([_fitting(value, field.type) for value in values], field.type)


def _fitting(value: Any, kind: Any) -> Any:
    """Return a value, or null if it does not fit its column: one bad row is not the others'."""
    import pyarrow as pa

    try:
        pa.array([value], kind)
    except UNFIT:
        return None
    return value


def _field(row: Any, name: str) -> Any:
    value = getattr(row, name)
    if name == "tenant_id" and value is not None:
        return str(value)
    if name == "timestamp" and value is not None and value.year in (MINYEAR, MAXYEAR):
        return _in_range(value)
    return value


def _in_range(value: datetime) -> datetime | None:
    """Return a time, or null if it is outside of what Python calls one: in UTC it may be."""
    try:
        return value.astimezone(UTC)
    except OverflowError:
        return None


def _reader() -> Any:
    """Return a reader of envelopes without payload; it returns None for anything else."""
    import msgspec

    envelope = msgspec.defstruct(
        "Envelope",
        [
            ("event_id", str | None, None),
            ("aggregate_id", str | None, None),
            ("event_type", str | None, None),
            ("event_version", int, 1),
            ("timestamp", datetime | None, None),
            ("trace_id", str | None, None),
            ("correlation_id", str | None, None),
            ("tenant_id", int | str | None, None),
            ("payload", msgspec.Raw, msgspec.Raw(b"null")),
        ],
    )
    decode = msgspec.json.Decoder(envelope).decode

    def read(data: bytes) -> Any:
        try:
            return decode(decompress(data) if is_compressed(data) else data)
        except (msgspec.MsgspecError, InvalidEnvelope, UnicodeDecodeError, RecursionError):
            return None

    return read
