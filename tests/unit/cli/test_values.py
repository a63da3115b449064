"""Sizes, durations and times, read and shown."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from penstock.cli import values as units

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500", 500),
        ("-1", -1),
        ("10k", 10_000),
        ("1K", 1000),
        ("1KB", 1024),
        ("64MB", 64 << 20),
        ("1GiB", 1 << 30),
        ("2tb", 2 << 40),
    ],
)
def test_numbers_are_read_as_in_the_configuration(text: str, number: int) -> None:
    assert number == units.read_number(text)


@pytest.mark.parametrize("text", ["", "MB", "1.5GB", "1 GB", "ten", "1XB"])
def test_what_is_no_number_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="is no number or size; hint: "):
        units.read_number(text)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("30", 30_000_000_000),
        ("0.5", 500_000_000),
        ("1ns", 1),
        ("250ms", 250_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("7d", 604_800_000_000_000),
        ("1d12h", 129_600_000_000_000),
    ],
)
def test_durations_are_read_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    assert nanoseconds == units.read_duration(text)


@pytest.mark.parametrize("text", ["", "h", "5x", "-1s", "1h 30m", "soon"])
def test_what_is_no_duration_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration; hint: "):
        units.read_duration(text)


def test_a_time_is_sent_in_utc() -> None:
    assert "2026-11-15T09:00:00Z" == units.read_time("2026-11-15T09:00:00Z")
    assert "2026-11-15T09:00:00Z" == units.read_time("2026-11-15T10:00:00+01:00")
    with pytest.raises(ValueError, match="is no time; hint: "):
        units.read_time("yesterday")


def test_a_time_that_is_shown_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert "2026-11-15T09:00:00Z" == units.read_time(units.show_time("2026-11-15T09:00:00Z"))
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", NOW - timedelta(seconds=90)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("7d", NOW - timedelta(days=7)),
        ("2026-01-31T12:00:00Z", NOW),
        ("2026-01-31T13:00:00+01:00", NOW),
        ("2026-01-31T12:00", NOW),
        ("2026-01-31", NOW - timedelta(hours=12)),
    ],
)
def test_a_moment_is_a_time_or_so_long_ago(text: str, moment: datetime) -> None:
    assert moment == units.read_moment(text, NOW)


@pytest.mark.parametrize("text", ["", "soon", "2", "2w", "-2h", "31.01.2026"])
def test_what_is_no_moment_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="hint: 2h"):
        units.read_moment(text, NOW)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "²", "many", ""])
def test_what_is_not_positive_says_so(text: str) -> None:
    assert 7 == units.read_positive("7")
    with pytest.raises(ValueError, match="hint: 1 or more"):
        units.read_positive(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 << 20, "64 MiB"),
        (5 << 70, "5120 EiB"),
    ],
)
def test_sizes_have_the_unit_that_suits_them(size: int, text: str) -> None:
    assert text == units.show_size(size)


@pytest.mark.parametrize(
    "text", ["0s", "1ns", "250ms", "1.5s", "30s", "1m", "1m30s", "1h", "1h30m", "24h", "7d"]
)
def test_a_duration_that_is_shown_can_be_read(text: str) -> None:
    assert text == units.show_duration(units.read_duration(text))


@pytest.mark.parametrize(
    ("time", "age"),
    [
        ("2026-11-15T09:00:00.9Z", "0s"),
        ("2026-11-15T08:59:18Z", "42s"),
        ("2026-11-15T08:00:00Z", "1h"),
        ("2026-11-15T07:55:58Z", "1h4m"),
        ("2026-11-12T06:00:00Z", "3d3h"),
        ("2026-11-15T09:00:05Z", "0s"),
        (units.NEVER, "never"),
    ],
)
def test_an_age_has_two_units(time: str, age: str) -> None:
    assert age == units.show_age(time, datetime(2026, 11, 15, 9, tzinfo=UTC))


def test_one_is_not_many() -> None:
    assert "1 message" == units.show_many(1, "message")
    assert "0 messages" == units.show_many(0, "message")
    assert "2,000 messages" == units.show_many(2000, "message")


def test_times_are_shown_to_the_second() -> None:
    assert "2026-11-15 09:00:00" == units.show_time("2026-11-15T09:00:00.123456789Z")
    assert "never" == units.show_time(units.NEVER)
