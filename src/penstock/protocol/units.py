"""
Sizes and durations as people write them, in files, options and on the command line.

`10k` is the same number and `7d` the same time everywhere: a bare letter counts in
thousands, `KB` and `KiB` in 1024. Durations are Go's plus days, because people think of
retention in days; a plain number means seconds. Durations on the wire have no days:
`times.parse_duration` reads those.
"""

from __future__ import annotations

import re

from penstock.protocol.times import SECOND_NS, parse_duration

_SIZE = re.compile(r"(-?\d{1,400})(?: ?([kmgtpe])(b|ib?)?)?", re.IGNORECASE | re.ASCII)
_DAYS = re.compile(r"(\d{1,19}(?:\.\d{0,19})?)d", re.ASCII)
_SECONDS = re.compile(r"\d{1,19}(?:\.\d{1,19})?", re.ASCII)


def size_of(text: str, *, kilo: int = 1000) -> int | None:
    """Return a whole number or a size, or None; `kilo` is the meaning of a bare `K`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    digits, unit, binary = match.groups()
    power = "kmgtpe".index(unit.lower()) + 1 if unit else 0
    return int(int(digits) * (1024 if binary else kilo) ** power)


def read_size(text: str) -> int:
    """Return a whole number or a size: `500`, `10k`, `64MB`; limits use -1 for none."""
    size = size_of(text)
    if size is None:
        raise ValueError(f"`{text}` is not a number or size; hint: 500, 64MB or 1GB")
    return size


def duration_of(text: str) -> int | None:
    """Return the nanoseconds of `1h30m`, `250ms` or `7d`, or None; a unit is required."""
    try:
        return parse_duration(_DAYS.sub(_in_hours, text))
    except ValueError:
        return None


def read_duration(text: str) -> int:
    """Return the nanoseconds of `1h30m`, `250ms` or `7d`; a plain number means seconds."""
    if _SECONDS.fullmatch(text):
        from decimal import Decimal

        return int(Decimal(text) * SECOND_NS)
    duration_ns = duration_of(text)
    if duration_ns is None or text.startswith(("-", "+")):
        raise ValueError(f"`{text}` is not a duration; hint: 30s, 1h30m or 7d")
    return duration_ns


def _in_hours(days: re.Match[str]) -> str:
    from decimal import Decimal

    return f"{Decimal(days[1]) * 24:f}h"
