"""Events as the bus writes them, for pipelines to read."""

from __future__ import annotations

import json
from typing import Any

from tests.spark.conftest import Broker

AGGREGATES = 5


def envelope(n: int, **payload: Any) -> bytes:
    """Return an event as the bus writes it."""
    return json.dumps(
        {
            "event_id": f"event-{n}",
            "aggregate_id": f"order-{n % AGGREGATES}",
            "event_type": "paid" if n % 2 else "placed",
            "timestamp": "2026-11-15T08:00:00Z",
            "payload": {"n": n} | payload,
        }
    ).encode()


def publish(broker: Broker, stream: str, numbers: range) -> list[tuple[int, str, bytes]]:
    """Publish events on two topics; return them as rows of a ledger."""
    ledger = [(n, f"{stream}.t{n % 2}", envelope(n)) for n in numbers]
    broker.publish([(subject, data) for _, subject, data in ledger])
    return ledger
