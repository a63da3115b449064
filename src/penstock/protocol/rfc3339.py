"""Points in time as JetStream writes them: RFC 3339 with nanoseconds, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from penstock.protocol.times import SECOND_NS, timestamp

ZERO = "0001-01-01T00:00:00Z"
"""Go's text for a time that was never set."""

LAYOUT = "2006-01-02T15:04:05Z07:00"
"""Go's text for the expected format."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def format_time(time_ns: int) -> str:
    """Return nanoseconds since 1970 as text; 0 is a time that was never set."""
    return timestamp(time_ns) if time_ns else ZERO


def parse_time(text: str) -> int:
    """Return nanoseconds since 1970, 0 for a time that was never set; raise ValueError."""
    match = RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f'parsing time "{text}" as "{LAYOUT}": cannot parse "{text}" as "2006"')
    date, fraction, zone = match.groups()
    if text == ZERO:
        return 0
    instant = datetime.fromisoformat(date.upper() + ("+00:00" if zone in "Zz" else zone))
    seconds = (instant - EPOCH) // timedelta(seconds=1)
    return seconds * SECOND_NS + int((fraction or "").ljust(9, "0"))
