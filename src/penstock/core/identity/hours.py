"""The times of day in which a user may connect, in the user's time zone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

DAY = timedelta(days=1)


def allowed_until(spans: Iterable[Mapping[str, str]], location: str, now_s: float) -> float | None:
    """Return the end of the current span, None if no span is current; raise ValueError."""
    try:
        zone = ZoneInfo(location) if location else None
        now = datetime.fromtimestamp(now_s, UTC).astimezone(zone)
        ends = [end for span in spans for end in _ends(span, now)]
    except (KeyError, ZoneInfoNotFoundError) as error:
        raise ValueError(str(error)) from None
    return max(ends).timestamp() if ends else None


def _ends(span: Mapping[str, str], now: datetime) -> list[datetime]:
    """Return the end of a daily span if it is current. A span may pass midnight."""
    start, end = (
        datetime.combine(now.date(), time.fromisoformat(span[name]), now.tzinfo)
        for name in ("start", "end")
    )
    if start <= end:
        return [end] if start < now < end else []
    if now > start:
        return [end + DAY]
    return [end] if now < end else []
