"""Times of the commands that work on a bus, as people say them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.cli.buscommand import parse_time
from penstock.errors import ConfigError

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("15m", NOW - timedelta(minutes=15)),
        ("2h", NOW - timedelta(hours=2)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-01-31T12:00:00Z", NOW),
        ("2026-01-31T13:00:00+01:00", NOW),
        ("2026-01-31T12:00", NOW),
        ("2026-01-31", NOW - timedelta(hours=12)),
    ],
)
def test_a_time_is_a_moment_or_so_long_ago(text: str, moment: datetime) -> None:
    assert moment == parse_time(text, NOW)


@pytest.mark.parametrize("text", ["", "soon", "2", "2w", "-2h", "31.01.2026"])
def test_what_is_no_time_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ConfigError, match="hint: 2h"):
        parse_time(text, NOW)
