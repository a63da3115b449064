"""When schedules are due."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.jetstream.intake.cron import next_time_ns, parse_cron

SECOND_NS = 1_000_000_000


def ns(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS


def due(pattern: str, since: str, zone: str | None = None) -> str:
    due_ns, repeats = next_time_ns(pattern, zone, ns(since), ns(since))
    assert repeats
    return datetime.fromtimestamp(due_ns // SECOND_NS, UTC).replace(tzinfo=None).isoformat(" ")


@pytest.mark.parametrize(
    ("pattern", "since", "expected"),
    [
        ("@every 90s", "2026-01-01 00:00:00", "2026-01-01 00:01:30"),
        ("@every 1s", "2026-01-01 00:00:00", "2026-01-01 00:00:01"),
        ("@hourly", "2026-01-01 00:00:00", "2026-01-01 01:00:00"),
        ("@daily", "2026-01-31 12:00:00", "2026-02-01 00:00:00"),
        ("@midnight", "2026-01-31 23:59:59", "2026-02-01 00:00:00"),
        ("@weekly", "2026-11-15 00:00:00", "2026-11-22 00:00:00"),
        ("@monthly", "2026-12-15 00:00:00", "2027-01-01 00:00:00"),
        ("@yearly", "2026-01-01 00:00:00", "2027-01-01 00:00:00"),
        ("* * * * * *", "2026-01-01 00:00:00", "2026-01-01 00:00:01"),
        ("*/20 * * * * *", "2026-01-01 00:00:41", "2026-01-01 00:01:00"),
        ("5/20 * * * * *", "2026-01-01 00:00:41", "2026-01-01 00:00:45"),
        ("0 30 14 * * *", "2026-01-01 14:30:00", "2026-01-02 14:30:00"),
        ("0 0 0 29 2 *", "2026-01-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 0 * * mon-wed", "2026-11-15 00:00:00", "2026-11-16 00:00:00"),
        ("0 0 0 1 * fri", "2026-11-15 00:00:00", "2026-11-20 00:00:00"),
        ("0 0 9,17 * mar,SEP ?", "2026-03-31 10:00:00", "2026-03-31 17:00:00"),
    ],
)
def test_a_schedule_is_due_at_the_next_time_that_fits(
    pattern: str, since: str, expected: str
) -> None:
    assert expected == due(pattern, since)


def test_a_time_zone_moves_the_day() -> None:
    assert "2026-07-01 22:00:00" == due("@daily", "2026-07-01 12:00:00", "Europe/Amsterdam")
    assert "2026-12-01 23:00:00" == due("@daily", "2026-12-01 12:00:00", "Europe/Amsterdam")


def test_what_was_due_often_is_due_once_after_now() -> None:
    for pattern, seconds in (("@every 10s", 10), ("*/10 * * * * *", 10)):
        now_ns = ns("2026-01-02 00:00:00")
        due_ns, _ = next_time_ns(pattern, None, ns("2026-01-01 00:00:00"), now_ns)
        assert now_ns + seconds * SECOND_NS == due_ns


def test_what_repeats_keeps_its_rhythm_however_often_it_is_asked() -> None:
    since_ns = ns("2026-01-01 00:00:00")
    for seconds in range(1, 30):
        now_ns = since_ns + seconds * SECOND_NS - 1
        due_ns, _ = next_time_ns("@every 10s", None, since_ns, now_ns)
        assert since_ns + ((seconds + 9) // 10) * 10 * SECOND_NS == due_ns


def test_an_exact_time_is_due_once() -> None:
    at = "2020-01-02T03:04:05Z"
    assert (ns("2020-01-02 03:04:05"), False) == next_time_ns(f"@at {at}", None, 0, 0)


@pytest.mark.parametrize("pattern", ["@at 2020-01-02T03:04:05Z", "@every 1m"])
def test_a_time_zone_needs_a_calendar(pattern: str) -> None:
    with pytest.raises(ValueError, match="calendar"):
        next_time_ns(pattern, "UTC", 0, 0)


@pytest.mark.parametrize(
    "pattern",
    ["", "* * * * *", "60 * * * * *", "* * * 0 * *", "* * * * 13 *", "* * * * * 7", "5-1 * * * * *",
     "*/0 * * * * *", "*/x * * * * *", "1-2-3 * * * * *", "1/2/3 * * * * *", "x * * * * *",
     "* * * * foo *", "-1 * * * * *"],
)  # fmt: skip
def test_a_pattern_that_makes_no_sense_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_cron(pattern)


@pytest.mark.parametrize("pattern", ["0 0 0 30 2 *", ", 0 0 * * *"])
def test_a_pattern_that_fits_no_time_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="no time within years"):
        next_time_ns(pattern, None, 0, 0)
