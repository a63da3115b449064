"""
Counters: a message carries an increment, and the total is stored (ADR-49).

`Nats-Incr: +5` on a subject whose last message is `{"val":"37"}` is stored as `{"val":"42"}`.
Numbers have no bound. A stream that sources counters of others remembers in `Nats-Counter-Sources`
the last total of each of them, so it adds the difference and counts nothing twice.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

from penstock.errors import JetStreamError
from penstock.jetstream.store.store import Store
from penstock.protocol import errorcodes, headers

Sources: TypeAlias = dict[str, dict[str, str]]
"""Totals of other streams: stream, subject, value."""
Total: TypeAlias = tuple[int, Sources]

SOURCES = b"Nats-Counter-Sources"
NUMBER = re.compile(rb"[+-]?[0-9]{1,4000}")
"""Python reads and writes numbers of up to 4,300 digits: no real counter gets there."""
EXCLUDED = (
    b"Nats-Rollup",
    b"Nats-Expected-Stream",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-Expected-Last-Subject-Sequence-Subject",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
)
"""Headers that a counter message may not have."""


def increment(header: bytes) -> int | None:
    """Return the increment of a message; None without one."""
    value = headers.get(header, b"Nats-Incr") if header else None
    if not value:
        return None
    if not NUMBER.fullmatch(value):
        raise JetStreamError(errorcodes.MESSAGE_INCREMENT_INVALID)
    return int(value)


def check(header: bytes, payload: bytes) -> None:
    """Check that a client's counter message asks for nothing else."""
    if increment(header) is None:
        return
    if payload:
        raise JetStreamError(errorcodes.MESSAGE_INCREMENT_PAYLOAD)
    if any(headers.get(header, key) for key in EXCLUDED):
        raise JetStreamError(errorcodes.MESSAGE_INCREMENT_INVALID)


def counted(
    store: Store, subject: bytes, header: bytes, payload: bytes, totals: dict[bytes, Total]
) -> tuple[bytes, bytes]:
    """Return the headers and the payload to store; `totals` has counters not stored yet."""
    by = increment(header)
    if by is None:
        raise JetStreamError(errorcodes.MESSAGE_INCREMENT_MISSING)
    total, sources = totals.get(subject) or _stored(store, subject)
    source = headers.get(header, b"Nats-Stream-Source")
    if source:
        by = _contribution(sources, source.decode(errors="replace").split(" "), subject, payload)
        header = headers.put(header, b"Nats-Incr", b"%d" % by)
    total += by
    if sources:
        document = json.dumps(sources, separators=(",", ":"), sort_keys=True)
        header = headers.put(header, SOURCES, document.encode())
    totals[subject] = total, sources
    return header, b'{"val":"%d"}' % total


def value(payload: bytes) -> str:
    """Return the number in a stored counter; raise JetStreamError if it is not one."""
    try:
        document = json.loads(payload)
        text = document.get("val", "")
    except (ValueError, AttributeError, RecursionError):
        raise JetStreamError(errorcodes.MESSAGE_COUNTER_BROKEN) from None
    return text if isinstance(text, str) and NUMBER.fullmatch(text.encode()) else "0"


def _stored(store: Store, subject: bytes) -> Total:
    message = store.get(store.last(subject)[0])
    if message is None:
        return 0, {}
    told = headers.get(message[3], SOURCES)
    return int(value(message[4])), _sources(told) if told else {}


def _sources(told: bytes) -> Sources:
    """Return the sources of a stored counter; a publisher may have forged them."""
    try:
        sources = json.loads(told)
        totals = [total for theirs in sources.values() for total in theirs.values()]
        is_known = all(NUMBER.fullmatch(total.encode()) for total in totals)
    except (ValueError, AttributeError, RecursionError):
        is_known = False
    if not is_known:
        raise JetStreamError(errorcodes.MESSAGE_COUNTER_BROKEN)
    return sources  # type: ignore[no-any-return]


def _contribution(sources: Sources, origin: list[str], subject: bytes, payload: bytes) -> int:
    """Note the new total of a source; return the difference from the previous one."""
    counted_subject = origin[4] if len(origin) >= 5 else subject.decode(errors="replace")
    theirs = sources.setdefault(origin[0], {})
    now, before = value(payload), theirs.get(counted_subject, "0")
    theirs[counted_subject] = now
    return int(now) - int(before)
