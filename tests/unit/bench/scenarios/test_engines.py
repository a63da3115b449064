"""Engines of the event bus side by side: the list of them, the table, the page."""

from __future__ import annotations

import pytest

from penstock.bench.report import enginepage
from penstock.bench.scenarios import engines
from penstock.bench.scenarios.engines import LoadFigures
from penstock.errors import ConfigError


def figures(engine: str, messages: int, rate: float) -> LoadFigures:
    return LoadFigures(
        engine=engine,
        messages=messages,
        rate=rate,
        latency_ns_50=1_000_000,
        latency_ns_99=2_000_000,
        program_bytes=40 << 20,
        broker_bytes=0 if engine == "embedded" else 300 << 20,
        tasks=5,
        threads=9,
        disordered=0,
    )


FOUND = [
    figures("embedded", 500, 20_000.0),
    figures("kafka", 500, 10_000.0),
    figures("embedded", 2_000, 30_000.0),
]


def test_a_list_of_engines_is_read() -> None:
    assert ("embedded", "kafka") == engines.parse("embedded, kafka")
    assert () == engines.parse("")
    with pytest.raises(ConfigError, match="`kafak`; hint: embedded, nats, kafka"):
        engines.parse("kafak")


def test_the_table_has_a_line_for_each_figure_of_each_load() -> None:
    lines = engines.render(FOUND, ("embedded", "kafka")).splitlines()

    assert 2 + 2 * len(engines.METRICS) == len(lines)
    assert ["500 events: events/s", "20,000", "10,000"] == _cells(lines[2])
    assert ["500 events: memory, broker", "-", "300.00 MB"] == _cells(lines[6])
    assert ["2,000 events: events/s", "30,000", "-"] == _cells(lines[9])


def test_the_page_draws_growth_and_says_how_it_was_measured() -> None:
    page = enginepage.render(FOUND, ("embedded", "kafka"), rounds=3)

    assert "<title>The event bus on embedded and kafka</title>" in page
    assert "3 rounds, engines taking turns" in page
    assert "Growth with load" in page
    assert "kafka: 10,000/s" in page
    assert "not measured" in page
    assert "syncs to the disk before it acks" in page


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
