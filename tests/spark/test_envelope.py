"""Events of the bus as columns: envelopes opened by the source, payloads of every format."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import pyarrow as pa
import pytest
import zstandard
from pyspark.sql import types as t
from tests.spark.conftest import Broker

from penstock.errors import ConfigError
from penstock.spark import open_envelopes
from penstock.spark.envelopes.envelope import decompress_data, open_events
from penstock.spark.envelopes.opener import EnvelopeOpener
from penstock.spark.envelopes.payload import Decoder, new_decoder
from penstock.spark.pipelines.config import with_decompressed

AVRO = {
    "type": "record",
    "name": "Paid",
    "fields": [
        {"name": "amount", "type": "double"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "lines", "type": {"type": "array", "items": "int"}},
    ],
}


def envelope(payload: Any, **fields: Any) -> bytes:
    """Return an event as the bus writes it."""
    event = {"event_id": "e-1", "aggregate_id": "order-1", "event_type": "paid"}
    return json.dumps(event | fields | {"payload": payload}).encode()


def opened(decoder: Decoder, kind: t.DataType, *messages: bytes) -> list[dict[str, Any]]:
    """Return what becomes of messages, as rows of `aggregate_id`, `event_version`, `payload`."""
    schema = t.StructType(
        [
            t.StructField("aggregate_id", t.StringType()),
            t.StructField("event_version", t.IntegerType()),
            t.StructField("payload", kind),
        ]
    )
    batch = pa.record_batch({"data": list(messages)})
    return [
        row
        for each in EnvelopeOpener(schema, decoder).open(iter([batch]))
        for row in each.to_pylist()
    ]


def payloads(decoder: Decoder, kind: t.DataType, *values: Any) -> list[Any]:
    """Return what becomes of payloads."""
    return [row["payload"] for row in opened(decoder, kind, *map(envelope, values))]


def test_without_a_schema_the_payload_is_text() -> None:
    decoder = new_decoder("json", "", "")

    assert "string" == decoder.ddl
    assert ['{"n": 1}', "[1]"] == payloads(decoder, t.StringType(), {"n": 1}, [1])


def test_json_is_read_by_its_schema_and_what_does_not_fit_is_null() -> None:
    decoder = new_decoder("json", "amount DOUBLE, tags ARRAY<STRING>", "")
    kind = t.StructType(
        [
            t.StructField("amount", t.DoubleType()),
            t.StructField("tags", t.ArrayType(t.StringType())),
        ]
    )

    assert "struct<amount DOUBLE, tags ARRAY<STRING>>" == decoder.ddl
    assert [
        {"amount": 2.5, "tags": ["a"]},
        {"amount": 3.0, "tags": None},
        {"amount": None, "tags": None},
        None,
        None,
    ] == payloads(
        decoder, kind, {"amount": 2.5, "tags": ["a"], "more": 1}, {"amount": 3}, {}, "text", None
    )


@pytest.mark.parametrize("compress", [zstandard.ZstdCompressor().compress, lz4.frame.compress])
def test_compressed_envelopes_are_opened(compress: Callable[[bytes], bytes]) -> None:
    data = compress(envelope({"n": 1}, event_version=3))

    assert [{"aggregate_id": "order-1", "event_version": 3, "payload": '{"n": 1}'}] == opened(
        new_decoder("json", "", ""), t.StringType(), data
    )


@pytest.mark.parametrize("data", [b"", b"\xff", b"[1]", b"\x28\xb5\x2f\xfd damaged", b"{} {}"])
def test_what_is_no_envelope_has_nulls(data: bytes) -> None:
    assert [{"aggregate_id": None, "event_version": None, "payload": None}] == opened(
        new_decoder("json", "", ""), t.StringType(), data
    )


def test_avro_is_read_by_its_schema(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from fastavro import parse_schema, schemaless_writer

    row = {"amount": 1.5, "note": None, "at": datetime(2026, 11, 15, tzinfo=UTC), "lines": [1, 2]}
    written = io.BytesIO()
    schemaless_writer(written, parse_schema(AVRO), row)
    (tmp_path / "paid.avsc").write_text(json.dumps(AVRO))
    kind = t.StructType(
        [
            t.StructField("amount", t.DoubleType()),
            t.StructField("note", t.StringType()),
            t.StructField("at", t.TimestampType()),
            t.StructField("lines", t.ArrayType(t.IntegerType())),
        ]
    )

    for schema in (json.dumps(AVRO), str(tmp_path / "paid.avsc")):
        decoder = new_decoder("avro", schema, "")
        found = payloads(decoder, kind, base64.b64encode(written.getvalue()).decode(), "!", 7)

        assert [row, None, None] == found
    assert "struct<`amount`: double, `note`: string, `at`: timestamp, `lines`: array<int>>" == (
        decoder.ddl
    )


@pytest.fixture
def descriptors(tmp_path: Path) -> str:
    """Return the path of a descriptor set, as protoc writes it."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    paid = file.message_type.add(name="Paid")
    paid.field.add(name="amount", number=1, type=kinds.TYPE_DOUBLE, label=1)
    paid.field.add(name="count", number=2, type=kinds.TYPE_INT64, label=1)
    paid.field.add(name="tags", number=3, type=kinds.TYPE_STRING, label=3)
    paid.field.add(name="line", number=4, type=kinds.TYPE_MESSAGE, type_name=".shop.Line", label=1)
    file.message_type.add(name="Line").field.add(
        name="sku", number=1, type=kinds.TYPE_BYTES, label=1
    )
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return str(path)


def test_protobuf_is_read_by_its_descriptor(descriptors: str) -> None:
    decoder = new_decoder("protobuf", descriptors, "shop.Paid")
    kind = t.StructType(
        [
            t.StructField("amount", t.DoubleType()),
            t.StructField("count", t.LongType()),
            t.StructField("tags", t.ArrayType(t.StringType())),
            t.StructField("line", t.StructType([t.StructField("sku", t.BinaryType())])),
        ]
    )
    message = decoder._type()(amount=1.5, count=2**40, tags=["a", "b"])  # type: ignore[attr-defined]

    found = payloads(decoder, kind, base64.b64encode(message.SerializeToString()).decode(), "/w==")

    assert (
        "struct<`amount`: double, `count`: bigint, `tags`: array<string>, "
        "`line`: struct<`sku`: binary>>"
    ) == decoder.ddl
    assert [{"amount": 1.5, "count": 2**40, "tags": ["a", "b"], "line": None}, None] == found


@pytest.mark.parametrize(
    ("kind", "schema", "message", "text"),
    [
        ("avro", "", "", "`payloadFormat` = avro needs a `payloadSchema`"),
        ("avro", '{"type": "nothing"}', "", "is no Avro schema"),
        ("avro", "/nowhere.avsc", "", "is no Avro schema"),
        *(
            ("avro", f'{{"type": "array", "items": {items}}}', "", "must have something in them")
            for items in (
                '"null"',
                '{"type": "null"}',
                '{"type": "fixed", "name": "f", "size": 0}',
                '{"type": "record", "name": "r", "fields": []}',
                '{"type": "record", "name": "r", "fields": [{"name": "n", "type": "null"}]}',
            )
        ),
        ("protobuf", "/nowhere.desc", "", "`payloadMessage` must name"),
        ("protobuf", "/nowhere.desc", "a.B", "`payloadSchema`: /nowhere.desc: No such file"),
    ],
)
def test_a_wrong_schema_is_said(kind: str, schema: str, message: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        new_decoder(kind, schema, message)


def test_a_message_that_the_set_lacks_is_said(descriptors: str) -> None:
    with pytest.raises(ConfigError, match=r"`shop.Sold` is not in"):
        new_decoder("protobuf", descriptors, "shop.Sold")


def test_the_source_opens_envelopes_as_sparks_own_functions_do(
    broker: Broker, stream: str, read: Callable[..., Any]
) -> None:
    events = [
        envelope(
            {"amount": n / 2, "currency": "EUR"}, timestamp="2026-11-15T08:00:00Z", tenant_id=n
        )
        for n in range(100)
    ]
    broker.publish([(f"{stream}.a", event) for event in events])
    schema = "amount DOUBLE, currency STRING"

    found = read(stream, format="envelope", payloadSchema=schema)
    expected = open_envelopes(read(stream), schema).drop("data")

    assert expected.dtypes == found.dtypes
    assert sorted(expected.collect()) == sorted(found.collect())
    assert [(50.0 - 0.5,)] == found.selectExpr("max(payload.amount)").collect()
    assert ["sequence", "payload"] == (
        read(stream, format="envelope", columns="sequence, payload").columns
    )


def test_the_source_decompresses_so_that_no_row_waits_for_python(
    broker: Broker, stream: str, read: Callable[..., Any]
) -> None:
    plain = [envelope({"n": n}) for n in range(3)]
    compressed = [zstandard.compress(plain[0]), plain[1], lz4.frame.compress(plain[2])]
    broker.publish([(f"{stream}.a", each) for each in compressed])
    frame = read(stream, decompress=True)

    found = open_envelopes(frame, "n INT", compressed=False)

    assert plain == [bytes(row.data) for row in frame.sort("sequence").collect()]
    assert [0, 1, 2] == [row.n for row in found.sort("sequence").select("payload.n").collect()]
    assert "ArrowEvalPython" not in found._jdf.queryExecution().executedPlan().toString()


def test_pipelines_open_events_without_python_and_keep_what_was_stored(
    broker: Broker, stream: str, read: Callable[..., Any]
) -> None:
    plain = [envelope({"n": n}) for n in range(3)]
    stored = [zstandard.compress(plain[0]), plain[1], lz4.frame.compress(plain[2])]
    broker.publish([(f"{stream}.a", each) for each in stored])
    frame = read(stream, **with_decompressed({}))
    alone = read(stream, columns="decompressed, sequence").sort("sequence")

    found = open_events(frame)

    assert stored == [bytes(row.data) for row in found.sort("sequence").collect()]
    assert ['{"n":0}', '{"n":1}', '{"n":2}'] == [
        row.payload.replace(" ", "") for row in found.sort("sequence").collect()
    ]
    assert "ArrowEvalPython" not in found._jdf.queryExecution().executedPlan().toString()
    assert open_envelopes(read(stream)).columns == found.columns
    assert [(plain[0], 1), (None, 2), (plain[2], 3)] == [tuple(row) for row in alone.collect()]


@pytest.mark.parametrize("rows", [[b"", b"{}", None], [b"\x28\xb5\x2f\xfd damaged", b"{}"]])
def test_what_cannot_be_decompressed_stays_as_it_is(rows: list[bytes | None]) -> None:
    batch = pa.record_batch({"sequence": range(len(rows)), "data": pa.array(rows, pa.binary())})

    assert batch.equals(decompress_data(batch))
    assert rows[:1] == decompress_data(batch.slice(0, 1)).column("data").to_pylist()
    without = batch.select(["sequence"])
    assert without is decompress_data(without)


def test_rows_are_decompressed_in_place() -> None:
    plain = [envelope({"n": n}) for n in range(3)]
    data = pa.array([zstandard.compress(plain[0]), plain[1], lz4.frame.compress(plain[2])])
    batch = pa.record_batch({"data": data, "sequence": [1, 2, 3]})

    found = decompress_data(batch)

    assert (batch.schema, plain) == (found.schema, found.column("data").to_pylist())


def test_a_payload_may_have_arrays_and_maps(spark: Any) -> None:
    data = envelope({"amount": 1.5, "tags": ["a", "b"], "more": {"x": 1}})
    frame = spark.createDataFrame([(data,)], "data binary")

    schema = "amount DOUBLE, tags ARRAY<STRING>, more MAP<STRING, INT>"
    (row,) = open_envelopes(frame, schema).select("payload.*").collect()

    assert (1.5, ["a", "b"], {"x": 1}) == (row.amount, row.tags, row.more)
