"""
CloudEvents 1.0, both ways.

| envelope       | CloudEvents                   |
|----------------|-------------------------------|
| event_id       | id                            |
| aggregate_id   | subject                       |
| event_type     | type                          |
| timestamp      | time                          |
| payload        | data                          |
| event_version  | extension `eventversion`      |
| trace_id       | extension `traceid`           |
| correlation_id | extension `correlationid`     |
| tenant_id      | extension `tenantid`          |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.bus.events.codec import encode_foreign
from penstock.bus.events.envelope import Envelope
from penstock.errors import InvalidEnvelope

SPEC_VERSION = "1.0"
REQUIRED = ("specversion", "id", "source", "type")
EXTENSIONS = {
    "traceid": "trace_id",
    "correlationid": "correlation_id",
    "tenantid": "tenant_id",
}


def to_cloudevent(envelope: Envelope[Any], *, source: str) -> dict[str, Any]:
    """Return the event in CloudEvents' structured form."""
    event = {
        "specversion": SPEC_VERSION,
        "id": envelope.event_id,
        "source": source,
        "type": envelope.event_type,
        "subject": envelope.aggregate_id,
        "time": envelope.timestamp.isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "eventversion": envelope.event_version,
        "data": msgspec.to_builtins(envelope.payload, enc_hook=encode_foreign),
    }
    for extension, name in EXTENSIONS.items():
        value = getattr(envelope, name)
        if value is not None:
            event[extension] = value
    return event


def from_cloudevent(event: Mapping[str, Any]) -> Envelope[Any]:
    """Read an event in CloudEvents' structured form; its subject is the aggregate."""
    missing = [name for name in REQUIRED if not event.get(name)]
    if missing:
        raise InvalidEnvelope(f"not a CloudEvent: `{'`, `'.join(missing)}` missing")
    if event["specversion"] != SPEC_VERSION:
        raise InvalidEnvelope(f"CloudEvents {event['specversion']} is not {SPEC_VERSION}")
    fields = {
        "event_id": event["id"],
        "aggregate_id": event.get("subject") or event["source"],
        "event_type": event["type"],
        "event_version": event.get("eventversion", 1),
        "payload": event.get("data"),
    }
    if "time" in event:
        fields["timestamp"] = event["time"]
    for extension, name in EXTENSIONS.items():
        if extension in event:
            fields[name] = event[extension]
    try:
        return msgspec.convert(fields, Envelope[Any])
    except msgspec.ValidationError as error:
        raise InvalidEnvelope(f"not an envelope: {error}") from error
