"""Sizes and durations: the same text is the same value wherever it is written."""

from __future__ import annotations

import pytest

from penstock.bus.config.loading import load_config
from penstock.config.file.language import parse_value
from penstock.config.file.readers import read_duration as read_directive
from penstock.protocol import units


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
    assert number == units.read_size(text)


@pytest.mark.parametrize("text", ["", "MB", "1.5GB", "ten", "1XB"])
def test_what_is_no_number_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number or size; hint: "):
        units.read_size(text)


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
    with pytest.raises(ValueError, match="is not a duration; hint: "):
        units.read_duration(text)


@pytest.mark.parametrize("text", ["7d", "1d12h", "90s", "1h30m"])
def test_server_and_bus_read_the_same_duration(text: str) -> None:
    node = parse_value(text, source="here", environ={})
    config = load_config({"connect_timeout": text}, environment={})
    seconds = units.read_duration(text) / 1e9

    assert (read_directive(node, "ping_interval"), config.connect_timeout) == (
        seconds,
        seconds,
    )


@pytest.mark.parametrize("text", ["10k", "64MB", "1GiB", "2t"])
def test_server_and_bus_read_the_same_size(text: str) -> None:
    node = parse_value(text, source="here", environ={})
    config = load_config({"publisher": {"max_pending": text}}, environment={})

    assert node.value == config.publisher.max_pending == units.read_size(text)
