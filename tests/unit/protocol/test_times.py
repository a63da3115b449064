"""Times and durations, in the words of Go."""

from __future__ import annotations

import pytest

from penstock.protocol import times

DAY_NS = 86_400 * times.SECOND_NS


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_794_725_699_735_382_419, "2026-11-15T06:54:59.735382419Z"),
        (1_794_725_700_874_701_830, "2026-11-15T06:55:00.87470183Z"),
        (1_794_725_700_000_000_001, "2026-11-15T06:55:00.000000001Z"),
    ],
)
def test_a_timestamp_has_as_many_decimals_as_it_needs(time_ns: int, text: str) -> None:
    assert text == times.timestamp(time_ns)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (627_000, "627µs"),
        (1_500, "1.5µs"),
        (1_234_567, "1.234567ms"),
        (1_500_000_000, "1.5s"),
        (62_000_000_000, "1m2s"),
        (3_600_000_000_000, "1h0m0s"),
        (-1_000_000, "-1ms"),
    ],
)
def test_a_duration_is_written_as_go_writes_it(duration_ns: int, text: str) -> None:
    assert text == times.duration(duration_ns)
    assert duration_ns == times.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("0", 0),
        ("1h30m", 5_400 * times.SECOND_NS),
        ("+1.001s", 1_001_000_000),
        (".5m", 30 * times.SECOND_NS),
        ("1.us", 1_000),
        ("1\u00b5s1\u03bcs", 2_000),
        ("1ms1s1ms", 1_002_000_000),
    ],
)
def test_a_duration_is_read_as_go_reads_it(text: str, duration_ns: int) -> None:
    assert duration_ns == times.parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "s",
        "1x",
        "1 s",
        "+-1s",
        "1s2",
        ".s",
        "1..5s",
        "\u0661s",
        "9" * 400 + "s",
        "9999999h",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        times.parse_duration(text)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (-1, "0s"),
        (999_999_999, "0s"),
        (62_900_000_000, "1m2s"),
        (DAY_NS, "1d0h0m0s"),
        (366 * DAY_NS + 3_605 * times.SECOND_NS, "1y1d1h0m5s"),
    ],
)
def test_an_uptime_is_in_whole_seconds(duration_ns: int, text: str) -> None:
    assert text == times.uptime(duration_ns)
