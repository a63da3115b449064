"""The envelope and its codec."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bus.deadletters.stored import Selection
from penstock.bus.engine import ReplayFrom
from penstock.bus.events.cloudevents import from_cloudevent, to_cloudevent
from penstock.bus.events.codec import Codec
from penstock.bus.events.envelope import Envelope
from penstock.bus.events.ids import EventIds, new_event_id
from penstock.bus.events.names import check_moment
from penstock.bus.outbox import SQLITE, Outbox
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


def event(payload: Any = "p", **fields: Any) -> Envelope[Any]:
    return Envelope(**({"aggregate_id": "a", "event_type": "t", "payload": payload} | fields))


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


BROKEN: list[dict[str, Any]] = [
    {"aggregate_id": ""},
    {"aggregate_id": "a b"},
    {"aggregate_id": "a" * 257},
    {"aggregate_id": "a\n"},
    {"event_id": ""},
    {"event_id": "a\r\nb"},
    {"event_type": " "},
    {"event_version": 0},
    {"payload": None},
]


@pytest.mark.parametrize("fields", BROKEN, ids=str)
def test_a_broken_envelope_cannot_be_made(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidEnvelope, match=next(iter(fields))):
        event(**fields)


@pytest.mark.parametrize("fields", BROKEN, ids=str)
def test_a_broken_envelope_cannot_be_read(fields: dict[str, Any]) -> None:
    whole = {"event_id": "e", "aggregate_id": "a", "event_type": "t", "payload": 1}

    with pytest.raises(InvalidEnvelope, match=next(iter(fields))):
        Codec().decode(msgspec.json.encode(whole | fields))


@pytest.mark.parametrize("data", [b"", b"x", b"[]", b"{}", b"\xff", b'{"event_id": 1}'])
def test_what_is_no_envelope_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidEnvelope):
        Codec().decode(data)


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(InvalidEnvelope, match="time zone"):
        event(timestamp=datetime(2026, 1, 1))


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


def test_cloudevents_go_both_ways() -> None:
    envelope = event({"n": 1}, trace_id="t1", correlation_id="c1", tenant_id=7, event_version=3)

    there = to_cloudevent(envelope, source="/orders")

    assert ("1.0", "a", "t", "/orders") == tuple(
        there[name] for name in ("specversion", "subject", "type", "source")
    )
    assert envelope == from_cloudevent(there)


def test_a_payload_object_becomes_plain_data_in_a_cloudevent() -> None:
    there = to_cloudevent(event(OrderModel(number=1, items=[])), source="s")

    assert {"number": 1, "items": []} == there["data"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"id": ""}, "id"), ({"specversion": "0.3"}, "0.3"), ({"data": None}, "payload")],
)
def test_what_is_no_cloudevent_is_refused(change: dict[str, Any], complaint: str) -> None:
    there = to_cloudevent(event(), source="s") | change

    with pytest.raises(InvalidEnvelope, match=complaint):
        from_cloudevent(there)


def test_ids_are_uuids_of_version_7_that_tell_the_time() -> None:
    before = datetime.now(UTC)
    value = uuid.UUID(new_event_id())
    made = datetime.fromtimestamp((value.int >> 80) / 1e3, UTC)

    assert (7, uuid.RFC_4122) == (value.version, value.variant)
    assert before - timedelta(milliseconds=1) <= made <= before + timedelta(seconds=5)


def test_ids_increase_even_when_the_clock_stands_still_or_goes_back() -> None:
    times = iter([5_000_000] * 5000 + [4_000_000] * 10)
    ids = EventIds(clock_ns=lambda: next(times))

    made = [ids() for _ in range(5010)]

    assert made == sorted(set(made))


@pytest.mark.parametrize("field", ["aggregate_id", "event_id", "event_type"])
@pytest.mark.parametrize("value", [None, 7, b"a"])
def test_what_is_no_text_is_named(field: str, value: Any) -> None:
    fields = {"aggregate_id": "a", "event_type": "t", "payload": 1} | {field: value}
    with pytest.raises(InvalidEnvelope, match=field):
        Envelope(**fields)


NAIVE = datetime(2026, 1, 31, 12, 0)


@pytest.mark.parametrize(
    "take",
    [
        lambda: ReplayFrom(time=NAIVE),
        lambda: Selection(since=NAIVE),
        lambda: Selection(until=NAIVE),
        lambda: Outbox(SQLITE).statement(
            "t", Envelope(aggregate_id="a", event_type="t", payload=1), due=NAIVE
        ),
        lambda: check_moment("due", NAIVE),
    ],
)
def test_a_time_without_a_zone_is_refused_everywhere(take: Callable[[], Any]) -> None:
    with pytest.raises(BusError, match="must have a time zone"):
        take()
