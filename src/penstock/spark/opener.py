"""Record batches of messages, with the envelope in `data` opened into columns of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.compression import decompress, is_compressed
from penstock.errors import InvalidEnvelope
from penstock.spark.envelope import FIELDS
from penstock.spark.payload import Decoder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PAYLOAD = "payload"


class Opener:
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
            rows = [envelopes(data) for data in batch.column("data").to_pylist()]
            arrays = [_column(field, batch, rows, read_payload) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(field: pa.Field, batch: pa.RecordBatch, rows: list[Any], read_payload: Any) -> pa.Array:
    import pyarrow as pa

    if field.name == PAYLOAD:
        values = [None if row is None else read_payload(bytes(row.payload)) for row in rows]
    elif field.name in FIELDS:
        values = [None if row is None else _field(row, field.name) for row in rows]
    else:
        return batch.column(field.name)
    return pa.array(values, field.type)


def _field(row: Any, name: str) -> Any:
    value = getattr(row, name)
    return str(value) if name == "tenant_id" and value is not None else value


def _reader() -> Any:
    """Return a function that reads an envelope without its payload; None for what is none."""
    import datetime

    import msgspec

    envelope = msgspec.defstruct(
        "Envelope",
        [
            ("event_id", str | None, None),
            ("aggregate_id", str | None, None),
            ("event_type", str | None, None),
            ("event_version", int, 1),
            ("timestamp", datetime.datetime | None, None),
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
        except (msgspec.MsgspecError, InvalidEnvelope):
            return None

    return read
