"""
The envelope: the data about an event, around its payload.

An envelope is checked when it is made, and it is made both by a publisher and by
reading one off the wire, so the rules below hold on both sides.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Generic, TypeVar

import msgspec

from penstock.bus.events.ids import new_event_id
from penstock.errors import InvalidEnvelope

T = TypeVar("T")

AGGREGATE_ID_CHARACTERS_MAX = 256
_is_event_id = re.compile(" *[!-~][ -~]*").fullmatch
_is_aggregate_id = re.compile(r"[A-Za-z0-9:_./-]{1,256}").fullmatch


def _now() -> datetime:
    return datetime.now(UTC)


class Envelope(msgspec.Struct, Generic[T], frozen=True, kw_only=True, omit_defaults=True):
    """One event. Events of one `aggregate_id` on one topic are handled in order."""

    event_id: str = msgspec.field(default_factory=new_event_id)
    """Unique; a UUID of version 7 unless given. Publishing it again stores nothing."""
    aggregate_id: str
    """The thing the event happened to: 1 to 256 of `A-Z a-z 0-9 : _ . / -`."""
    event_type: str
    event_version: int = msgspec.field(default_factory=lambda: 1)
    timestamp: datetime = msgspec.field(default_factory=_now)
    trace_id: str | None = None
    correlation_id: str | None = None
    tenant_id: int | str | None = None
    payload: T

    def __post_init__(self) -> None:
        if not isinstance(self.aggregate_id, str) or not _is_aggregate_id(self.aggregate_id):
            raise InvalidEnvelope(
                f"`aggregate_id` must be 1 to {AGGREGATE_ID_CHARACTERS_MAX} of "
                f"A-Z a-z 0-9 : _ . / - : {self.aggregate_id!r}"
            )
        # The id travels in a header, where a line break would start another one.
        if not isinstance(self.event_id, str) or not _is_event_id(self.event_id):
            raise InvalidEnvelope(f"`event_id` must be ASCII and not blank: {self.event_id!r}")
        if not isinstance(self.event_type, str) or not self.event_type.strip():
            raise InvalidEnvelope(f"`event_type` must be text, and not blank: {self.event_type!r}")
        if not isinstance(self.event_version, int) or self.event_version <= 0:
            raise InvalidEnvelope(f"`event_version` must be 1 or more: {self.event_version!r}")
        if self.payload is None:
            raise InvalidEnvelope("`payload` must not be empty")
        if isinstance(self.payload, float) and not isfinite(self.payload):
            # It would arrive as null, which no reader takes for an event.
            raise InvalidEnvelope(f"`payload` must be a number that JSON has: {self.payload!r}")
        if not isinstance(self.timestamp, datetime) or self.timestamp.tzinfo is None:
            raise InvalidEnvelope(f"`timestamp` must have a time zone: {self.timestamp!r}")
        if self.trace_id is not None or self.correlation_id is not None:
            self._check_ids()
        if self.tenant_id is not None and not isinstance(self.tenant_id, int | str):
            raise InvalidEnvelope(f"`tenant_id` must be a number or text: {self.tenant_id!r}")

    def _check_ids(self) -> None:
        """Raise if an id is no text: it could be sent, and nobody could read the event."""
        for name, text in (("trace_id", self.trace_id), ("correlation_id", self.correlation_id)):
            if text is not None and not isinstance(text, str):
                raise InvalidEnvelope(f"`{name}` must be text: {text!r}")

    def with_payload(self, payload: Any, *, event_version: int | None = None) -> Envelope[Any]:
        """Return the same event with another payload."""
        return msgspec.structs.replace(
            self, payload=payload, event_version=event_version or self.event_version
        )
