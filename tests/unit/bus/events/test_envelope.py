"""What an envelope may say, and what it may not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from penstock.bus.deadletters.stored import Selection
from penstock.bus.engine import ReplayFrom
from penstock.bus.events.envelope import Envelope
from penstock.bus.events.names import check_moment
from penstock.bus.outbox import SQLITE, Outbox
from penstock.errors import BusError, InvalidEnvelope


def event(payload: Any = "p", **fields: Any) -> Envelope[Any]:
    return Envelope(**({"aggregate_id": "a", "event_type": "t", "payload": payload} | fields))


BROKEN: list[dict[str, Any]] = [
    {"aggregate_id": ""},
    {"aggregate_id": "a b"},
    {"aggregate_id": "a" * 257},
    {"aggregate_id": "a\n"},
    {"event_id": ""},
    {"event_id": "a\r\nb"},
    {"event_type": " "},
    {"event_version": 0},
    {"event_version": "1"},
    {"event_version": 1.5},
    {"timestamp": "now"},
    {"trace_id": 7},
    {"correlation_id": 7},
    {"tenant_id": 1.5},
    {"payload": None},
]


@pytest.mark.parametrize("fields", BROKEN, ids=str)
def test_a_broken_envelope_cannot_be_made(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidEnvelope, match=next(iter(fields))):
        event(**fields)


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(InvalidEnvelope, match="time zone"):
        event(timestamp=datetime(2026, 1, 1))


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
