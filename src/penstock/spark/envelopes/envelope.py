"""The envelope of the event bus as columns: what the event says about itself, and its payload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidEnvelope
from penstock.protocol.compression import LZ4_MAGIC, MAGIC_BYTES, ZSTD_MAGIC, decompress
from penstock.spark.envelopes.payload import type_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

DECOMPRESSED = "decompressed"
"""A column of the source: what `data` was before it was compressed, null where it was not."""

FIELDS = {
    "event_id": "string",
    "aggregate_id": "string",
    "event_type": "string",
    "event_version": "int",
    "timestamp": "timestamp",
    "trace_id": "string",
    "correlation_id": "string",
    "tenant_id": "string",
}


def open_envelopes(
    messages: DataFrame, payload_schema: str | None = None, *, compressed: bool = True
) -> DataFrame:
    """
    Add the fields of the envelope in `data`, and `payload`.

    The payload is JSON text, so that its schema may change from event to event; with
    `payload_schema`, a schema in Spark's SQL, it is a struct. What is no envelope has nulls.
    An event may be compressed, as the bus does with large ones; every row waits for Python to
    look. With `compressed` = false none does: if there are none, or if the source has the option
    `decompress`, which costs next to nothing.
    """
    from pyspark.sql import functions as f

    data = f.col("data")
    return _open(messages, decompressed(data) if compressed else data, payload_schema)


def open_events(messages: DataFrame) -> DataFrame:
    """Do the same, without Python if the source has decompressed events beside `data`."""
    from pyspark.sql import functions as f

    if DECOMPRESSED not in messages.columns:
        return open_envelopes(messages)
    return _open(messages, f.coalesce(DECOMPRESSED, "data")).drop(DECOMPRESSED)


def _open(messages: DataFrame, data: Column, payload_schema: str | None = None) -> DataFrame:
    from pyspark.sql import functions as f

    fields = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
    kind = "string" if payload_schema is None else type_of(payload_schema)
    opened = f.from_json(data.cast("string"), f"{fields}, payload {kind}")
    with_envelope = messages.withColumn("_envelope", opened)
    names = [*FIELDS, "payload"]
    columns = [f.col(f"_envelope.{name}").alias(name) for name in names]
    # Nothing here asks for the schema, which a declarative pipeline does not know yet.
    opened_up = with_envelope.select("*", *columns).drop("_envelope")
    return opened_up.withColumn("event_version", f.coalesce("event_version", f.lit(1)))


def decompressed(data: Column) -> Column:
    """Return what was compressed as it was before, and the rest as it is."""
    from pyspark.sql import functions as f

    magic = f.substring(data, 1, MAGIC_BYTES)
    is_compressed = magic.isin(*(f.lit(bytearray(each)) for each in (ZSTD_MAGIC, LZ4_MAGIC)))
    # Python is handed only what is compressed; in the place of the rest come nulls.
    return f.coalesce(_opening()(f.when(is_compressed, data)), data)


def _opening() -> Any:
    """Return the function of Spark's that decompresses a column."""
    import pyarrow as pa
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType

    if not hasattr(f, "arrow_udf"):
        # Before 4.1 rows come one by one.
        return f.udf(_decompress, BinaryType())
    # Spark asks for the types themselves, which are not imported before they are needed.
    decompress_column.__annotations__ |= {"column": pa.Array, "return": pa.Array}
    return f.arrow_udf(decompress_column, BinaryType())


def decompress_data(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the source with what was compressed as it was before."""
    import pyarrow.compute as pc

    place = batch.schema.get_field_index("data")
    if place < 0:
        return batch
    data = batch.column(place)
    found = compressed_only(data)
    if found.null_count == len(found):
        return batch
    opened = pc.coalesce(decompress_column(found), data)
    return batch.set_column(place, batch.schema.field(place), opened)


def compressed_only(data: pa.Array) -> pa.Array:
    """Return a column with nulls in the place of what is not compressed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    magic = pc.binary_slice(data, 0, MAGIC_BYTES)
    is_compressed = pc.is_in(magic, pa.array([ZSTD_MAGIC, LZ4_MAGIC]))
    if not pc.any(is_compressed).as_py():
        return pa.nulls(len(data), data.type)
    return pc.if_else(is_compressed, data, None)


def decompress_column(column: pa.Array) -> pa.Array:
    """Decompress a column; what is damaged becomes null."""
    import pyarrow as pa

    if column.null_count == len(column):
        return column
    return pa.array([_decompress(each) for each in column.to_pylist()], column.type)


def _decompress(data: bytes | None) -> bytes | None:
    try:
        return None if data is None else decompress(data)
    except InvalidEnvelope:
        return None
