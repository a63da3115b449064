"""Envelopes to bytes and back."""

from __future__ import annotations

import dataclasses
import threading
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.bus.events.test_envelope import BROKEN, event

from penstock.bus.events.codec import Codec
from penstock.errors import BusError, InvalidEnvelope
from penstock.protocol.compression import LZ4_MAGIC, ZSTD_MAGIC, compressor

JSON = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@dataclasses.dataclass
class OrderData:
    number: int
    items: list[str]


class OrderStruct(msgspec.Struct):
    number: int
    items: list[str]


class OrderModel(pydantic.BaseModel):
    number: int
    items: list[str]


@given(
    payload=JSON,
    aggregate_id=st.from_regex(r"[A-Za-z0-9:_./-]{1,256}", fullmatch=True),
    event_type=st.text(min_size=1).filter(str.strip),
    version=st.integers(1, 2**31),
    timestamp=st.datetimes(timezones=st.just(UTC)),
    tenant_id=st.none() | st.integers(0, 2**31) | st.text(),
)
def test_what_is_encoded_decodes_to_the_same(
    payload: Any,
    aggregate_id: str,
    event_type: str,
    version: int,
    timestamp: datetime,
    tenant_id: int | str | None,
) -> None:
    envelope = event(
        payload,
        aggregate_id=aggregate_id,
        event_type=event_type,
        event_version=version,
        timestamp=timestamp,
        tenant_id=tenant_id,
    )
    codec = Codec()

    assert envelope == codec.decode(codec.encode(envelope))


def test_the_wire_form_is_plain_json_without_absent_fields() -> None:
    envelope = event({"n": 1}, timestamp=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), event_id="e")

    assert (
        b'{"event_id":"e","aggregate_id":"a","event_type":"t","event_version":1,'
        b'"timestamp":"2026-01-02T03:04:05Z","payload":{"n":1}}'
    ) == Codec().encode(envelope)


@pytest.mark.parametrize("fields", BROKEN, ids=str)
def test_a_broken_envelope_cannot_be_read(fields: dict[str, Any]) -> None:
    whole = {"event_id": "e", "aggregate_id": "a", "event_type": "t", "payload": 1}

    with pytest.raises(InvalidEnvelope, match=next(iter(fields))):
        Codec().decode(msgspec.json.encode(whole | fields))


@pytest.mark.parametrize("payload", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_no_event(payload: float) -> None:
    with pytest.raises(InvalidEnvelope, match="a number that JSON has"):
        event(payload)


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b"\xff", b'{"event_id": 1}'])
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidEnvelope):
        Codec().decode(data)


@pytest.mark.parametrize("kind", [OrderData, OrderStruct, OrderModel])
def test_a_payload_has_the_type_it_is_asked_for(kind: Any) -> None:
    order = kind(number=1, items=["a", "b"])
    codec = Codec()

    data = codec.encode(event(order))

    assert order == codec.decode(data, kind).payload
    assert {"number": 1, "items": ["a", "b"]} == codec.decode(data).payload


@pytest.mark.parametrize("kind", [OrderData, OrderStruct, OrderModel])
def test_a_payload_of_another_shape_is_refused(kind: Any) -> None:
    codec = Codec()

    with pytest.raises(InvalidEnvelope, match="items"):
        codec.decode(codec.encode(event({"number": 1})), kind)


@pytest.mark.parametrize("kind", [Any, int, dict[str, int], OrderData, OrderStruct, OrderModel])
def test_these_types_are_known_to_be_readable(kind: Any) -> None:
    Codec().check(kind)


@pytest.mark.parametrize("kind", [threading.Thread, OrderData | OrderStruct])
def test_a_type_that_cannot_be_read_is_refused_before_the_first_message(kind: Any) -> None:
    with pytest.raises(BusError, match="cannot become"):
        Codec().check(kind)


@pytest.mark.parametrize("event", [None, {"aggregate_id": "a"}, b"{}"])
def test_what_is_no_envelope_is_not_published(event: Any) -> None:
    with pytest.raises(InvalidEnvelope, match="is no event"):
        Codec().encode(event)


def test_a_payload_without_a_form_in_json_is_refused() -> None:
    with pytest.raises(InvalidEnvelope, match="object"):
        Codec().encode(event(object()))


def test_upcasters_bring_a_payload_up_to_date_step_by_step() -> None:
    codec = Codec()

    @codec.upcaster("t", from_version=1)
    def add_items(payload: Any) -> Any:
        return {**payload, "items": []}

    @codec.upcaster("t", from_version=2)
    def rename(payload: Any) -> Any:
        return {"number": payload["no"], "items": payload["items"]}

    old = codec.decode(codec.encode(event({"no": 7})), OrderData)
    other = codec.decode(codec.encode(event({"no": 7}, event_type="u")))

    assert (OrderData(7, []), 3) == (old.payload, old.event_version)
    assert ({"no": 7}, 1) == (other.payload, other.event_version)


class Placed(msgspec.Struct, tag=True):
    number: int


class Paid(msgspec.Struct, tag=True):
    cents: int


@dataclasses.dataclass
class Refunded:
    cents: int


def test_of_several_types_each_has_a_tag_and_others_are_told_so() -> None:
    codec = Codec()
    codec.check(Placed | Paid)
    read = codec.decode(codec.encode(event(Paid(7))), Placed | Paid)

    assert Paid(7) == read.payload
    with pytest.raises(BusError, match="of several types each is a `msgspec"):
        codec.check(OrderData | Refunded)


def test_a_version_has_one_upcaster() -> None:
    codec = Codec()
    codec.upcaster("t", from_version=1)(lambda payload: payload)

    with pytest.raises(InvalidEnvelope, match="already"):
        codec.upcaster("t", from_version=1)(lambda payload: payload)


@pytest.mark.parametrize(("algorithm", "magic"), [("zstd", ZSTD_MAGIC), ("lz4", LZ4_MAGIC)])
def test_large_messages_are_compressed_and_every_codec_reads_them(
    algorithm: Any, magic: bytes
) -> None:
    codec = Codec(compressor(algorithm, bytes_min=1000))
    small, large = event("x"), event("x" * 1000)

    assert codec.encode(small).startswith(b"{")
    assert codec.encode(large).startswith(magic)
    assert len(codec.encode(large)) < 400
    assert [small, large] == [Codec().decode(codec.encode(one)) for one in (small, large)]


@pytest.mark.parametrize("algorithm", ["zstd", "lz4"])
def test_damaged_compression_is_an_invalid_envelope(algorithm: Any) -> None:
    data = Codec(compressor(algorithm, bytes_min=1)).encode(event("x" * 5000))

    with pytest.raises(InvalidEnvelope):
        Codec().decode(data[: len(data) // 2])
