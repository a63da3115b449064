"""
One pull request, and the statuses that answer it.

A status is an empty message with a header: `408 Request Timeout`, `404 No Messages`, ...
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from penstock.protocol import strictjson

PRIORITY_MAX = 9
LAST = PRIORITY_MAX + 1
"""The priority of a request that names no group."""
FIELDS = {
    "batch": "int",
    "expires": "time.Duration",
    "no_wait": "bool",
    "max_bytes": "int",
    "idle_heartbeat": "time.Duration",
    "group": "string",
    "min_pending": "int64",
    "min_ack_pending": "int64",
    "id": "string",
    "priority": "int",
}
PLAIN_NUMBER = re.compile(rb"-?[0-9]{1,18}")
REMEMBERED_BYTES_MAX = 512
TYPE_NAME = ""
"""nats-server reads into a value without a type name, and its errors show that."""


class RefusedPull(Exception):
    """A request that is refused with a status immediately."""


class Wish(NamedTuple):
    """The options of a request."""

    batch: int = 1
    expires_ns: int = 0
    no_wait: bool = False
    max_bytes: int = 0
    heartbeat_ns: int = 0
    group: str | None = None
    """Its priority group; None for a request that is not JSON."""
    min_pending: int = 0
    min_ack_pending: int = 0
    pin_id: str = ""
    priority: int = LAST


class PullRequest:
    """One request that waits for messages."""

    __slots__ = (
        "batch",
        "bytes_left",
        "delivered",
        "expires_at_ns",
        "heartbeat_at_ns",
        "inbox",
        "wish",
    )

    def __init__(self, inbox: bytes, wish: Wish, now_ns: int) -> None:
        self.inbox = inbox
        self.wish = wish
        self.batch = wish.batch
        self.bytes_left = wish.max_bytes
        self.expires_at_ns = now_ns + wish.expires_ns if wish.expires_ns else 0
        self.heartbeat_at_ns = now_ns + wish.heartbeat_ns if wish.heartbeat_ns else 0
        self.delivered = 0

    @property
    def deadline_ns(self) -> int:
        """When a heartbeat or its end is due; 0 is never."""
        deadlines = [each for each in (self.expires_at_ns, self.heartbeat_at_ns) if each]
        return min(deadlines, default=0)


def parse_wish(payload: bytes) -> Wish:
    """Return the options of a request: an empty one is for one message, a number for that many."""
    # A client repeats the same request. Only small ones are cached.
    return _remembered(payload) if len(payload) <= REMEMBERED_BYTES_MAX else _parsed(payload)


def _parsed(payload: bytes) -> Wish:
    text = payload.strip()
    if not text.startswith(b"{"):
        is_number = PLAIN_NUMBER.fullmatch(text)
        return Wish(batch=int(text)) if is_number else Wish()
    try:
        # Unlike the API, this ignores unknown fields.
        values = strictjson.decode(text, FIELDS, TYPE_NAME, strict=False)
    except strictjson.InvalidJson as error:
        raise RefusedPull(f"400 Bad Request - {error.text}") from None
    heartbeat_ns, expires_ns = values.get("idle_heartbeat", 0), values.get("expires", 0)
    if heartbeat_ns > 0 and heartbeat_ns * 2 > expires_ns:
        raise RefusedPull("400 Bad Request - heartbeat value too large")
    return Wish(
        batch=values.get("batch", 0),
        expires_ns=expires_ns,
        no_wait=values.get("no_wait", False),
        max_bytes=values.get("max_bytes", 0),
        heartbeat_ns=max(heartbeat_ns, 0),
        group=values.get("group", ""),
        min_pending=values.get("min_pending", 0),
        min_ack_pending=values.get("min_ack_pending", 0),
        pin_id=values.get("id", ""),
        priority=values.get("priority", 0),
    )


_remembered = lru_cache(maxsize=256)(_parsed)


def encode_status(status: str) -> bytes:
    """Return the header block of a status."""
    return f"NATS/1.0 {status}\r\n\r\n".encode()


def pending_status(status: str, request: PullRequest) -> bytes:
    """Return the header block of a status, with the unserved rest of a request."""
    return (
        f"NATS/1.0 {status}\r\nNats-Pending-Messages: {request.batch}\r\n"
        f"Nats-Pending-Bytes: {request.bytes_left}\r\n\r\n"
    ).encode()
