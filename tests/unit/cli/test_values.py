"""Sizes, durations and times, read and shown."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from penstock.cli import values
from penstock.protocol import units

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_a_time_is_sent_in_utc() -> None:
    assert "2026-11-15T09:00:00Z" == values.read_time("2026-11-15T09:00:00Z")
    assert "2026-11-15T09:00:00Z" == values.read_time("2026-11-15T10:00:00+01:00")
    with pytest.raises(ValueError, match="is not a time; hint: "):
        values.read_time("yesterday")


def test_a_time_that_is_shown_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert "2026-11-15T09:00:00Z" == values.read_time(values.show_time("2026-11-15T09:00:00Z"))
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
    assert moment == values.read_moment(text, NOW)


@pytest.mark.parametrize("text", ["", "soon", "2", "2w", "-2h", "31.01.2026"])
def test_what_is_no_moment_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="hint: 2h"):
        values.read_moment(text, NOW)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "²", "many", ""])
def test_what_is_not_positive_says_so(text: str) -> None:
    assert 7 == values.read_positive("7")
    with pytest.raises(ValueError, match="hint: 1 or more"):
        values.read_positive(text)


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
    assert text == values.show_size(size)


@pytest.mark.parametrize(
    "text", ["0s", "1ns", "250ms", "1.5s", "30s", "1m", "1m30s", "1h", "1h30m", "24h", "7d"]
)
def test_a_duration_that_is_shown_can_be_read(text: str) -> None:
    assert text == values.show_duration(units.read_duration(text))


@pytest.mark.parametrize(
    ("time", "age"),
    [
        ("2026-11-15T09:00:00.9Z", "0s"),
        ("2026-11-15T08:59:18Z", "42s"),
        ("2026-11-15T08:00:00Z", "1h"),
        ("2026-11-15T07:55:58Z", "1h4m"),
        ("2026-11-12T06:00:00Z", "3d3h"),
        ("2026-11-15T09:00:05Z", "0s"),
        (values.NEVER, "never"),
    ],
)
def test_an_age_has_two_units(time: str, age: str) -> None:
    assert age == values.show_age(time, datetime(2026, 11, 15, 9, tzinfo=UTC))


def test_one_is_not_many() -> None:
    assert "1 message" == values.show_many(1, "message")
    assert "0 messages" == values.show_many(0, "message")
    assert "2,000 messages" == values.show_many(2000, "message")


def test_times_are_shown_to_the_second() -> None:
    assert "2026-11-15 09:00:00" == values.show_time("2026-11-15T09:00:00.123456789Z")
    assert "never" == values.show_time(values.NEVER)
