"""Times and durations in the format of nats-server, which is Go's."""

from __future__ import annotations

import re
import time
from functools import lru_cache

SECOND_NS = 1_000_000_000
DAY_S = 86_400.0
UNITS = ((1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
UNITS_NS = {
    "h": 3600 * SECOND_NS,
    "m": 60 * SECOND_NS,
    "s": SECOND_NS,
    "ms": 1_000_000,
    # The micro sign and the Greek letter look alike, and Go accepts both.
    **dict.fromkeys(("us", "µs", "μs"), 1_000),
    "ns": 1,
}
DURATION_NS_MAX = 2**63 - 1
DURATION_CHARACTERS_MAX = 256
DURATION = re.compile(r"[+-]?(?:(?:\d{1,19}(?:\.\d*)?|\.\d+)(?:h|m|s|ms|us|µs|μs|ns))+", re.ASCII)
DURATION_PART = re.compile(r"([0-9.]+)([a-zµμ]+)")


def timestamp(time_ns: int) -> str:
    """Return a time as RFC 3339 in UTC, to the nanosecond: `2026-11-15T06:54:59.73538Z`."""
    seconds, fraction = divmod(time_ns, SECOND_NS)
    return f"{_whole_seconds(seconds)}{_fraction(fraction, SECOND_NS)}Z"


@lru_cache(maxsize=256)
def _whole_seconds(seconds: int) -> str:
    # Times written together are mostly in the same few seconds.
    year, month, day, hour, minute, second, *_ = time.gmtime(seconds)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"


def duration(duration_ns: int) -> str:
    """Return a duration with its units: `627µs`, `1.5s`, `1m2s`."""
    if duration_ns < 0:
        return "-" + duration(-duration_ns)
    if 0 < duration_ns < SECOND_NS:
        return _below_a_second(duration_ns)
    seconds, fraction = divmod(duration_ns, SECOND_NS)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}{_fraction(fraction, SECOND_NS)}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def parse_duration(text: str) -> int:
    """Return the nanoseconds of a duration such as `1h30m` or `-1.5s`; raise ValueError."""
    if text == "0":
        return 0
    is_one = len(text) <= DURATION_CHARACTERS_MAX and DURATION.fullmatch(text)
    parts = DURATION_PART.findall(text) if is_one else []
    total_ns = sum(round(float(number) * UNITS_NS[unit]) for number, unit in parts)
    if not parts or total_ns > DURATION_NS_MAX:
        raise ValueError(f'invalid duration "{text}"')
    return -total_ns if text.startswith("-") else total_ns


def uptime(duration_ns: int) -> str:
    """Return a duration in whole seconds, with days and years: `3d0h12m5s`."""
    minutes, seconds = divmod(max(duration_ns, 0) // SECOND_NS, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    years, days = divmod(days, 365)
    parts = ((years, "y"), (days, "d"), (hours, "h"), (minutes, "m"))
    first = next((index for index, (value, _) in enumerate(parts) if value), len(parts))
    return "".join(f"{value}{unit}" for value, unit in parts[first:]) + f"{seconds}s"


def _below_a_second(duration_ns: int) -> str:
    size_ns, unit = next(each for each in UNITS if duration_ns >= each[0])
    whole, fraction = divmod(duration_ns, size_ns)
    return f"{whole}{_fraction(fraction, size_ns)}{unit}"


def _fraction(numerator: int, denominator: int) -> str:
    """Return the decimals of a fraction whose denominator is a power of ten, if there are any."""
    if not numerator:
        return ""
    digits = len(str(denominator)) - 1
    return "." + str(numerator).zfill(digits).rstrip("0")
