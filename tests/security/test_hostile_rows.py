"""Hostile events towards Spark: each is a row of nulls, and its neighbours are whole."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.security.hostileevents import UNREADABLE, bombs, event, spliced

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pyarrow as pa
import zstandard
from google.protobuf import descriptor_pb2
from pyspark.sql import types as t

from penstock.spark.envelopes.opener import EnvelopeOpener
from penstock.spark.envelopes.payload import Avro, Decoder, Json, JsonText, Protobuf

MEGABYTE = 1 << 20
FIELDS = [
    t.StructField("event_type", t.StringType()),
    t.StructField("event_version", t.IntegerType()),
    t.StructField("timestamp", t.TimestampType()),
    t.StructField("tenant_id", t.StringType()),
]
ORDER = t.StructType(
    [
        t.StructField("amount", t.IntegerType()),
        t.StructField("tiny", t.ByteType()),
        t.StructField("price", t.DecimalType(6, 2)),
        t.StructField("day", t.DateType()),
        t.StructField("note", t.StringType()),
        t.StructField("parts", t.ArrayType(t.IntegerType())),
    ]
)
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "amount", "type": "int"},
        {"name": "note", "type": "string"},
        {"name": "parts", "type": {"type": "array", "items": "long"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}


def rows_of(
    events: list[bytes], decoder: Decoder | None = None, payload: t.DataType | None = None
) -> list[dict[str, Any]]:
    """Return what a reader on an executor makes of these messages."""
    kind = payload or t.StringType()
    schema = t.StructType([*FIELDS, t.StructField("payload", kind)])
    batch = pa.RecordBatch.from_pydict({"data": pa.array(events, pa.binary())})
    opened = EnvelopeOpener(schema, decoder or JsonText()).open(iter([batch]))
    return [row for part in opened for row in part.to_pylist()]


SPARK_READS = {
    "no version",
    "an id with a line break",
    "no aggregate",
    "an aggregate with a line break",
    "an aggregate without end",
    "a time without a zone",
    "no payload",
}
"""What breaks a rule of the bus, and still has all the columns."""


@pytest.mark.parametrize(
    "data", [UNREADABLE[name] for name in UNREADABLE if name not in SPARK_READS]
)
def test_what_cannot_be_read_is_a_row_of_nulls(data: bytes) -> None:
    before, bad, after = rows_of([event(), data, event(event_version=2)])

    assert {None} == set(bad.values())
    assert (1, 2) == (before["event_version"], after["event_version"])


@pytest.mark.parametrize(
    ("data", "column"),
    [
        (event(event_version=2**40), "event_version"),
        (event(event_version=-(2**40)), "event_version"),
        (event(timestamp="0001-01-01T00:00:00+23:59"), "timestamp"),
        (event(timestamp="9999-12-31T23:59:59-23:59"), "timestamp"),
    ],
)
def test_a_field_that_does_not_fit_its_column_costs_no_other_row(data: bytes, column: str) -> None:
    before, bad, after = rows_of([event(), data, event()])

    assert "order" == bad["event_type"]
    assert before == after
    assert before[column] is not None


@pytest.mark.parametrize(
    "payload",
    [
        b'{"amount": 99999999999}',
        b'{"amount": %b}' % (b"9" * 5000),
        b'{"amount": 1e999}',
        b'{"amount": "x"}',
        b'{"tiny": 300}',
        b'{"price": "123456789.123"}',
        b'{"price": "NaN"}',
        b'{"day": "0000-00-00"}',
        b'{"note": "\\ud800"}',
        b'{"note": "\xff"}',
        b'{"parts": [1, 99999999999]}',
        b'{"parts": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[]",
        b"5",
    ],
    ids=lambda payload: payload[:40].decode(errors="replace"),
)
def test_a_json_payload_that_lies_about_its_schema_is_null(payload: bytes) -> None:
    good = event(payload={"amount": 1, "parts": [2]})
    before, bad, after = rows_of(
        [good, spliced("payload", payload), good], Json("amount int"), ORDER
    )

    assert bad["payload"] is None
    assert 1 == before["payload"]["amount"] == after["payload"]["amount"]


BINARY = {
    "nothing": b"",
    "zeros": b"\x00" * 3,
    "a length without end": b"\x02" + b"\xff" * 8 + b"\x01",
    "a negative length": b"\x02\x01",
    "a varint without end": b"\xff" * 200,
    "an array of many": b"\x02\x02x" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f",
    "an enum that is none": b"\x02\x02x\x00\x40",
    "no UTF-8": b"\x02\x04\xff\xfe\x00\x00",
}


@pytest.mark.parametrize("payload", BINARY.values(), ids=BINARY)
def test_an_avro_payload_that_lies_about_its_schema_is_null(payload: bytes) -> None:
    kind = t.StructType(
        [
            t.StructField("amount", t.IntegerType()),
            t.StructField("note", t.StringType()),
            t.StructField("parts", t.ArrayType(t.LongType())),
            t.StructField("kind", t.StringType()),
        ]
    )
    good = event(payload=base64.b64encode(b"\x02\x02x\x00\x00").decode())
    hostile = event(payload=base64.b64encode(payload).decode())
    before, bad, after = rows_of([good, hostile, good], Avro(json.dumps(AVRO)), kind)

    assert bad["payload"] is None
    assert 1 == before["payload"]["amount"] == after["payload"]["amount"]


@pytest.mark.parametrize("payload", ["!", "é", "====", "A", 5, None, ["A"], {"a": "b"}])
def test_a_binary_payload_that_is_no_base64_is_null(payload: Any) -> None:
    kind = t.StructType([t.StructField("amount", t.IntegerType())])
    schema = {"type": "record", "name": "R", "fields": [{"name": "amount", "type": "int"}]}
    [row] = rows_of([event(payload=payload)], Avro(json.dumps(schema)), kind)

    assert row["payload"] is None


def test_a_protobuf_payload_that_lies_about_its_schema_is_null(tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="amount", number=1, type=5, label=1)
    message.field.add(name="note", number=2, type=9, label=1)
    path = tmp_path / "order.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    kind = t.StructType(
        [t.StructField("amount", t.IntegerType()), t.StructField("note", t.StringType())]
    )
    hostile = [
        b"\xff" * 200,
        b"\x08",
        b"\x12\xff\xff\xff\xff\x0f",
        b"\x12\x02\xff\xfe",
        b"\x0b" * 500,
    ]
    events = [event(payload=base64.b64encode(data).decode()) for data in hostile]
    good = event(payload=base64.b64encode(b"\x08\x01").decode())
    *bad, last = rows_of([*events, good], Protobuf(str(path), "p.Order"), kind)

    assert [None] * len(hostile) == [row["payload"] for row in bad]
    assert 1 == last["payload"]["amount"]


def test_bombs_are_rows_of_nulls() -> None:
    rows = rows_of([*bombs().values(), event()])

    assert [None] * 3 == [row["event_type"] for row in rows[:3]]
    assert "order" == rows[3]["event_type"]


def test_large_messages_are_opened_a_bounded_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may be as large as compression allows, and a batch has thousands of them."""
    monkeypatch.setattr("penstock.spark.envelopes.opener.PART_BYTES", 4 * MEGABYTE)
    text = b"".join(b"%d " % number for number in range(150_000))
    data = zstandard.compress(spliced("payload", b'"%b"' % text))
    schema = t.StructType([*FIELDS, t.StructField("payload", t.StringType())])
    batch = pa.RecordBatch.from_pydict({"data": pa.array([data] * 30, pa.binary())})
    parts = [
        (part.num_rows, part.nbytes)
        for part in EnvelopeOpener(schema, JsonText()).open(iter([batch]))
    ]

    assert 30 == sum(rows for rows, _ in parts)
    assert max(size for _, size in parts) < 4 * MEGABYTE + 2 * len(text)


def test_an_empty_batch_stays_one() -> None:
    assert [] == rows_of([])
