"""Reads times, and shows sizes, durations and times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.protocol.times import DAY_S, SECOND_NS, duration
from penstock.protocol.units import duration_of

SIZES = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
NEVER = "0001-01-01T00:00:00Z"
"""The API's time for an event that has not happened."""


def read_time(text: str) -> str:
    """Return a time in the API's form, from `2026-11-15` or `2026-11-15T09:00:00Z`."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"`{text}` is not a time; hint: 2026-11-15T09:00:00Z") from None
    # Times are shown in UTC, so a time without a zone is read as UTC.
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return rfc3339(time)


def read_moment(text: str, now: datetime | None = None) -> datetime:
    """Return a time, or the time a duration ago: `2h`, `7d`, `2026-11-15T09:00:00Z`."""
    ago_ns = duration_of(text)
    if ago_ns is not None and ago_ns >= 0:
        return (now or datetime.now(UTC)) - timedelta(microseconds=ago_ns / 1000)
    try:
        return datetime.fromisoformat(read_time(text))
    except ValueError:
        raise ValueError(f"`{text}` is not a time; hint: 2h, or 2026-11-15T09:00:00Z") from None


def read_until(text: str, now: datetime) -> datetime:
    """Return a time to come: a duration from now, or a time."""
    in_ns = duration_of(text)
    if in_ns is not None and in_ns >= 0:
        return now + timedelta(microseconds=in_ns / 1000)
    try:
        return datetime.fromisoformat(read_time(text))
    except ValueError:
        raise ValueError(f"`{text}` is not a time; hint: 10m, or 2026-11-15T09:00:00Z") from None


def rfc3339(time: datetime) -> str:
    """Return a time in the API's form."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def read_positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"`{text}` is not positive; hint: 1 or more")
    return int(text)


def show_size(size: int) -> str:
    """Return a size with a fitting unit: `512 B`, `1.5 MiB`."""
    if abs(size) < 1024:
        return f"{size} B"
    value = float(size)
    for unit in SIZES:
        value /= 1024
        if abs(value) < 1024 or unit == SIZES[-1]:
            break
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def show_duration(duration_ns: int) -> str:
    """Return a duration without trailing zeros: `24h`, `1m30s`; whole days as days."""
    day_ns = int(DAY_S) * SECOND_NS
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
    """Return an API time to the second, in UTC: `2026-11-15 09:00:00`."""
    return "never" if text == NEVER else text[:19].replace("T", " ")


def show_age(text: str, now: datetime) -> str:
    """Return how long ago an API time was, in its two largest units."""
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
