"""
Sizes, durations and times: how people write them and how they are shown.

They are read as in the configuration: `1KB` and `1KiB` are 1024, `1K` is 1000;
durations are `1h30m` or plain seconds, and may have days, which retention is
often thought in. Durations are whole nanoseconds, as the API has them.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from penstock.protocol.times import SECOND_NS, UNITS_NS, duration

NUMBER = re.compile(r"(-?\d+)(?:([kmgtpe])(b|ib?)?)?", re.IGNORECASE)
DURATION = re.compile(r"(?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h|d))+")
DURATION_PART = re.compile(r"([\d.]+)([a-zµμ]+)")
SECONDS = re.compile(r"\d+(?:\.\d+)?")
NANOSECONDS = UNITS_NS | {"d": 86_400 * SECOND_NS}
SIZES = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
NEVER = "0001-01-01T00:00:00Z"
"""The time the API gives for what has not happened."""


def read_number(text: str) -> int:
    """Return a whole number or a size: `500`, `10k`, `64MB`; -1 is how limits say none."""
    match = NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text}` is no number or size; hint: 500, 64MB or 1GB")
    digits, unit, binary = match.groups()
    power = "kmgtpe".index(unit.lower()) + 1 if unit else 0
    return int(int(digits) * (1024 if binary else 1000) ** power)


def read_duration(text: str) -> int:
    """Return the nanoseconds of `1h30m`, `250ms` or `7d`; a plain number is seconds."""
    if SECONDS.fullmatch(text):
        return int(Decimal(text) * SECOND_NS)
    if not DURATION.fullmatch(text):
        raise ValueError(f"`{text}` is no duration; hint: 30s, 1h30m or 7d")
    parts = DURATION_PART.findall(text)
    return int(sum(Decimal(number) * NANOSECONDS[unit] for number, unit in parts))


def read_time(text: str) -> str:
    """Return a time in the API's form; `2026-11-15` and `2026-11-15T09:00:00Z` will do."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"`{text}` is no time; hint: 2026-11-15T09:00:00Z") from None
    # As all times are shown, so that what was shown can be given.
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return rfc3339(time)


def read_moment(text: str, now: datetime | None = None) -> datetime:
    """Return a time, or the one so long ago: `2h`, `7d`, `2026-11-15T09:00:00Z`."""
    if DURATION.fullmatch(text):
        return (now or datetime.now(UTC)) - timedelta(microseconds=read_duration(text) / 1000)
    try:
        return datetime.fromisoformat(read_time(text))
    except ValueError:
        raise ValueError(f"`{text}` is no time; hint: 2h, or 2026-11-15T09:00:00Z") from None


def rfc3339(time: datetime) -> str:
    """Return a time in the API's form."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def read_positive(text: str) -> int:
    """Return a whole number that is at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"`{text}` is not positive; hint: 1 or more")
    return int(text)


def show_size(size: int) -> str:
    """Return a size with the unit that suits it: `512 B`, `1.5 MiB`."""
    if abs(size) < 1024:
        return f"{size} B"
    value = float(size)
    for unit in SIZES:
        value /= 1024
        if abs(value) < 1024 or unit == SIZES[-1]:
            break
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def show_duration(duration_ns: int) -> str:
    """Return a duration without the zeros at its end: `24h`, `1m30s`; whole days as days."""
    day_ns = NANOSECONDS["d"]
    if duration_ns and duration_ns % day_ns == 0 and duration_ns > day_ns:
        return f"{duration_ns // day_ns}d"
    text = duration(duration_ns)
    for zeros in ("m0s", "h0m"):
        if text.endswith(zeros):
            text = text[:-2]
    return text


def show_count(count: int) -> str:
    """Return a number in groups of thousands."""
    return f"{count:,}"


def show_many(count: int, noun: str) -> str:
    """Return a number of things: `1 message`, `2,000 messages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def show_time(text: str) -> str:
    """Return a time of the API to the second, in UTC: `2026-11-15 09:00:00`."""
    return "never" if text == NEVER else text[:19].replace("T", " ")


def show_age(text: str, now: datetime) -> str:
    """Return how long ago a time of the API was, by its two largest units."""
    if text == NEVER:
        return "never"
    then = datetime.fromisoformat(text[:19] + "+00:00")
    seconds = max(0, int((now - then).total_seconds()))
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return "".join(f"{value}{unit}" for value, unit in parts[:2] if value) or "0s"
