"""
When a schedule is due: `@at`, `@every`, `@hourly` and the like, and six-field cron (ADR-51).

The fields are second, minute, hour, day of the month, month, day of the week. Each is `*`, a number
or name, a range, a step, or several of them with commas. If neither kind of day is `*`, one match
is enough.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from penstock.protocol.rfc3339 import parse_time
from penstock.protocol.times import SECOND_NS, parse_duration

PATTERN_CHARACTERS_MAX = 1024
"""Room for a list of every second, minute, hour and day."""
YEARS_MAX = 5
"""A pattern that matches no time within this number of years is refused."""

PREDEFINED = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class FieldRange(NamedTuple):
    """The range of a field."""

    lowest: int
    highest: int
    names: tuple[str, ...] = ()


FIELDS = (
    FieldRange(0, 59),
    FieldRange(0, 59),
    FieldRange(0, 23),
    FieldRange(1, 31),
    FieldRange(1, 12, MONTHS),
    FieldRange(0, 6, DAYS),
)


class Field(NamedTuple):
    """The numbers that a field allows, and whether it is a `*`."""

    numbers: frozenset[int]
    is_open: bool


def next_time_ns(pattern: str, zone: str | None, since_ns: int, now_ns: int) -> tuple[int, bool]:
    """
    Return when a schedule is due next, and whether it repeats; raise ValueError.

    A schedule that missed several times is due once, after now.
    """
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters")
    if pattern.startswith(("@at ", "@every ")) and zone is not None:
        raise ValueError("a time zone needs a calendar")
    if pattern.startswith("@at "):
        return parse_time(pattern[4:]), False
    if pattern.startswith("@every "):
        every_ns = parse_duration(pattern[7:])
        if every_ns < SECOND_NS:
            raise ValueError("not more often than every second")
        due_ns = _rounded(since_ns) + every_ns
        # Counted from the missed time, not from now: otherwise a server that restarts often would
        # wait for ever.
        missed = (now_ns - due_ns) // every_ns + 1 if due_ns < now_ns else 0
        return due_ns + missed * every_ns, True
    fields = parse_cron(PREDEFINED.get(pattern, pattern))
    due_ns = _next(fields, zone, since_ns)
    return (due_ns if due_ns >= now_ns else _next(fields, zone, _rounded(now_ns))), True


def _rounded(time_ns: int) -> int:
    return (time_ns + SECOND_NS // 2) // SECOND_NS * SECOND_NS


def parse_cron(pattern: str) -> tuple[Field, ...]:
    """Return the fields of a pattern; raise ValueError."""
    texts = pattern.split()
    if len(texts) != len(FIELDS):
        raise ValueError(f"{len(FIELDS)} fields, not {len(texts)}")
    return tuple(_field(text, bounds) for text, bounds in zip(texts, FIELDS, strict=True))


def _field(text: str, bounds: FieldRange) -> Field:
    numbers: set[int] = set()
    is_open = False
    for part in filter(None, text.split(",")):
        allowed, with_star = _range(part, bounds)
        numbers.update(allowed)
        is_open = is_open or with_star
    return Field(frozenset(numbers), is_open)


def _range(text: str, bounds: FieldRange) -> tuple[range, bool]:
    span, *steps = text.split("/")
    ends = span.split("-")
    if len(steps) > 1 or len(ends) > 2:
        raise ValueError(f"too many signs in {text}")
    is_star = ends[0] in ("*", "?")
    if is_star:
        first, last = bounds.lowest, bounds.highest
    else:
        first = _number(ends[0], bounds)
        last = _number(ends[-1], bounds)
        if steps and len(ends) == 1:
            last = bounds.highest
    step = int(steps[0]) if steps and steps[0].isdigit() else 1
    if steps and (not steps[0].isdigit() or step == 0):
        raise ValueError(f"a step is a positive number: {text}")
    if first < bounds.lowest or last > bounds.highest or first > last:
        raise ValueError(f"out of range: {text}")
    return range(first, last + 1, step), is_star and step == 1


def _number(text: str, bounds: FieldRange) -> int:
    if text.lower() in bounds.names:
        return bounds.names.index(text.lower()) + bounds.lowest
    if not text.isdigit():
        raise ValueError(f"not a number: {text}")
    return int(text)


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)


def _next(fields: tuple[Field, ...], zone: str | None, since_ns: int) -> int:
    """Return the first time after another that the fields allow."""
    seconds, minutes, hours, _, months, _ = fields
    where = _zone(zone) if zone is not None else UTC
    start = datetime.fromtimestamp(since_ns // SECOND_NS + 1, where).replace(tzinfo=None)
    at, limit = start, start.year + YEARS_MAX
    while at.year <= limit:
        if at.month not in months.numbers:
            at = _month_after(at)
        elif not _is_day(fields, at):
            at = at.replace(hour=0, minute=0, second=0) + timedelta(days=1)
        elif at.hour not in hours.numbers:
            at = at.replace(minute=0, second=0) + timedelta(hours=1)
        elif at.minute not in minutes.numbers:
            at = at.replace(second=0) + timedelta(minutes=1)
        elif at.second not in seconds.numbers:
            at += timedelta(seconds=1)
        else:
            return int(at.replace(tzinfo=where).timestamp()) * SECOND_NS
    raise ValueError("no time within years")


def _month_after(at: datetime) -> datetime:
    year, month = (at.year + 1, 1) if at.month == 12 else (at.year, at.month + 1)
    return datetime(year, month, 1)


def _is_day(fields: tuple[Field, ...], at: datetime) -> bool:
    of_month, of_week = fields[3], fields[5]
    in_month = at.day in of_month.numbers
    in_week = at.isoweekday() % 7 in of_week.numbers
    if of_month.is_open or of_week.is_open:
        return in_month and in_week
    return in_month or in_week
