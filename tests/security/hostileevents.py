"""Events that somebody made to hurt whoever reads them."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

GOOD: dict[str, Any] = {
    "event_id": "e-1",
    "aggregate_id": "a",
    "event_type": "order",
    "timestamp": "2024-01-01T00:00:00Z",
    "payload": {"amount": 1},
}


def event(**fields: Any) -> bytes:
    """Return an event with some fields as given."""
    return json.dumps(GOOD | fields).encode()


def spliced(name: str, raw: bytes) -> bytes:
    """Return an event whose field has a value that no encoder would write."""
    return event(**{name: "SPLICE"}).replace(b'"SPLICE"', raw)


def bombs() -> dict[str, bytes]:
    """Return a few bytes each that say they are a hundred megabytes."""
    zeros = b" " * (100 << 20)
    return {
        "a zstd bomb": import_module("zstandard").compress(zeros),
        "an lz4 bomb": import_module("lz4.frame").compress(zeros),
        "a zstd bomb of an event": import_module("zstandard").compress(
            spliced("payload", b'"%b"' % (b"x" * (8 << 20)))
        ),
    }


UNREADABLE = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "bytes": bytes(range(256)),
    "no UTF-8": spliced("event_type", b'"\xff"'),
    "a lone surrogate": spliced("event_type", b'"\\ud800"'),
    "depth": spliced("payload", b"[" * 100_000 + b"]" * 100_000),
    "depth in a field nobody asked for": spliced(
        "more", b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    ),
    "endless depth": b'{"payload":' + b"[" * 500_000,
    "a version of 5000 digits": spliced("event_version", b"9" * 5000),
    "a version that is text": event(event_version="x"),
    "no version": event(event_version=-1),
    "an id with a line break": event(event_id="a\r\nNats-Msg-Id: b"),
    "an id that is a list": event(event_id=[]),
    "no aggregate": event(aggregate_id=""),
    "an aggregate with a line break": event(aggregate_id="a\nb"),
    "an aggregate without end": event(aggregate_id="a" * 10_000),
    "a time that is none": event(timestamp="yesterday"),
    "a time without a zone": event(timestamp="2024-01-01T00:00:00"),
    "no payload": event(payload=None),
    "a tenant that is a list": event(tenant_id=[1]),
    "a zstd frame that is junk": b"\x28\xb5\x2f\xfd" + b"\xff" * 100,
    "an lz4 frame that is junk": b"\x04\x22\x4d\x18" + b"\xff" * 100,
    "a zstd window of gigabytes": b"\x28\xb5\x2f\xfd\x00\xf8" + b"\x01\x00\x00",
}
"""What no reader may take for an event."""
