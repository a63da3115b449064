"""Envelopes as CloudEvents."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from tests.unit.bus.events.test_envelope import event

from penstock.bus.events.cloudevents import from_cloudevent, to_cloudevent
from penstock.errors import InvalidEnvelope


class OrderModel(pydantic.BaseModel):
    number: int
    items: list[str]


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
