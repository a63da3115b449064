"""Points in time as JetStream writes them: RFC 3339 with nanoseconds, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from penstock.times import SECOND_NS, timestamp

ZERO = "0001-01-01T00:00:00Z"
"""How Go writes a time that was never set."""

LAYOUT = "2006-01-02T15:04:05Z07:00"
"""How Go writes what it expects."""

DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|m|s|ms|us|µs|ns)(?=[0-9.]|$)")
UNITS_NS = {
    "h": 3600 * SECOND_NS,
    "m": 60 * SECOND_NS,
    "s": SECOND_NS,
    "ms": 1_000_000,
    "us": 1_000,
    "µs": 1_000,
    "ns": 1,
}

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def format_time(time_ns: int) -> str:
    """Return nanoseconds since 1970 as text; 0 is a time that was never set."""
    return timestamp(time_ns) if time_ns else ZERO


def parse_time(text: str) -> int:
    """Return nanoseconds since 1970, 0 for the time that was never set; raise ValueError."""
    match = RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f'parsing time "{text}" as "{LAYOUT}": cannot parse "{text}" as "2006"')
    date, fraction, zone = match.groups()
    if text == ZERO:
        return 0
    instant = datetime.fromisoformat(date.upper() + ("+00:00" if zone in "Zz" else zone))
    seconds = (instant - EPOCH) // timedelta(seconds=1)
    return seconds * SECOND_NS + int((fraction or "").ljust(9, "0"))


def format_duration(seconds: int) -> str:
    """Return a whole number of seconds as Go writes a duration: `1h0m5s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a Go duration such as `1h30m`; raise ValueError."""
    if text[:1] in ("+", "-"):
        return (-1 if text[0] == "-" else 1) * parse_duration(text[1:])
    if text == "0":
        return 0
    if not re.fullmatch(f"(?:{DURATION.pattern})+", text):
        raise ValueError(f'invalid duration "{text}"')
    return sum(int(float(number) * UNITS_NS[unit]) for number, unit in DURATION.findall(text))
