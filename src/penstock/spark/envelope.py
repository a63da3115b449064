"""The envelope of the event bus as columns: what the event says about itself, and its payload."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def open_envelopes(messages: DataFrame, payload_schema: str | None = None) -> DataFrame:
    """
    Add the fields of the envelope in `data`, and `payload`.

    The payload is JSON text, so that its schema may change from event to event; with
    `payload_schema`, a schema in Spark's SQL, it is a struct. What is no envelope has nulls.
    """
    from pyspark.sql import functions as f

    fields = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
    payload = payload_schema if payload_schema is not None else "string"
    kind = f"struct<{payload}>" if payload_schema is not None and "<" not in payload else payload
    opened = f.from_json(f.col("data").cast("string"), f"{fields}, payload {kind}")
    with_envelope = messages.withColumn("_envelope", opened)
    names = [*FIELDS, "payload"]
    columns = [f.col(f"_envelope.{name}").alias(name) for name in names]
    # Nothing here asks for the schema, which a declarative pipeline does not know yet.
    opened_up = with_envelope.select("*", *columns).drop("_envelope")
    return opened_up.withColumn("event_version", f.coalesce("event_version", f.lit(1)))
