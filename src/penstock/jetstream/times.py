"""Points in time as JetStream writes them: RFC 3339 with nanoseconds, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

ZERO = "0001-01-01T00:00:00Z"
"""How Go writes a time that was never set."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def format_time(time_ns: int) -> str:
    """Return nanoseconds since 1970 as text; 0 is a time that was never set."""
    if not time_ns:
        return ZERO
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    text = (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
    return f"{text}{fraction}Z"


def parse_time(text: str) -> int:
    """Return nanoseconds since 1970, 0 for the time that was never set; raise ValueError."""
    match = RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"not a time: {text!r}")
    date, fraction, zone = match.groups()
    if text == ZERO:
        return 0
    instant = datetime.fromisoformat(date.upper() + ("+00:00" if zone in "Zz" else zone))
    seconds = (instant - EPOCH) // timedelta(seconds=1)
    return seconds * 1_000_000_000 + int((fraction or "").ljust(9, "0"))
