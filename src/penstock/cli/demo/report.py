"""The report of the demo: one page, with every figure checked."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from html import escape
from itertools import pairwise

from penstock.bench.report import charts, machine
from penstock.bench.report.charts import Bar, Point
from penstock.bench.report.sections import axis_rate, section
from penstock.bench.report.style import document
from penstock.bench.scenarios.compare import human_rate
from penstock.cli.demo.shop import Moment
from penstock.cli.demo.story import Story

MIB = 1024**2
TITLE = "Orders, from the socket to the lake"


def render(story: Story) -> str:
    """Return the page."""
    parts = [
        _header(story),
        _tiles(story),
        _checks(story),
        _service(story),
        _killed(story),
        _acts(story),
    ]
    if story.windows:
        parts += [_regions(story), _latency(story)]
    return document(f"Penstock: {TITLE.lower()}", "\n".join(parts))


def rate(story: Story) -> float:
    """Return events per second, from the first publish to the last handled event."""
    return story.shop.events / story.shop.elapsed_s


def _header(story: Story) -> str:
    spark = f"Spark {story.spark}" if story.spark else f"without Spark: {story.without_spark}"
    when = time.strftime("%-d %B %Y, %H:%M")
    return (
        f'<header><p class="kicker">penstock demo</p><h1>{TITLE}</h1>'
        f'<p class="quiet">{escape(story.broker)}<br>{escape(spark)}<br>'
        f"{escape(machine.describe())}<br>{when}</p></header>"
    )


def _tiles(story: Story) -> str:
    tiles = [
        (f"{story.shop.events:,}", "events", "published, handled, acked"),
        (f"{rate(story):,.0f}", "events a second", "through the bus, synced to disk"),
        (f"{story.shop.failures:,}", "failures on purpose", "retried, order kept"),
        (f"{story.resident_bytes / MIB:.0f} MB", "memory", "of the broker, at the end"),
    ]
    shown = "".join(
        f"<div><strong>{escape(figure)}</strong><span>{what}</span><small>{how}</small></div>"
        for figure, what, how in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _checks(story: Story) -> str:
    rows = "".join(
        f'<li class="{"good" if holds else "bad"}">{"✓" if holds else "✗"} {escape(claim)}</li>'
        for claim, holds in story.checks().items()
    )
    return section("What was checked", "", f'<ul class="checks">{rows}</ul>')


def _service(story: Story) -> str:
    moments = [Moment(0.0, 0, 0), *story.shop.moments]
    published = _rates(moments, [moment.published for moment in moments])
    handled = _rates(moments, [moment.handled for moment in moments])
    return section(
        "The order service",
        "Events a second as the service ran: published and acked by the disk, and handled in the "
        "order of each order.",
        charts.timeline([(0, published), (1, handled)], spell=axis_rate),
        ("published", "handled"),
    )


def _killed(story: Story) -> str:
    shop = story.shop
    told = (
        f"Two processes shared the orders. When {shop.killed_at:,} events were handled, one of "
        f"them was killed. After {shop.taken_over_s:.1f} s the other one had its orders and went "
        f"on with them, each in order. {shop.repeated:,} events were handled twice: those the "
        "killed process had handled, and could not report any more."
    )
    return section("A process is killed", told, "")


def _rates(moments: Sequence[Moment], counts: Sequence[int]) -> list[Point]:
    """Return the rate between each moment and the next."""
    steps = zip(pairwise(moments), pairwise(counts), strict=True)
    return [
        Point(later.elapsed_s, (after - before) / (later.elapsed_s - earlier.elapsed_s), "")
        for (earlier, later), (before, after) in steps
        if later.elapsed_s > earlier.elapsed_s
    ]


def _acts(story: Story) -> str:
    rows = [
        (name, [Bar(number % 4, seconds, f"{seconds:.1f} s")])
        for number, (name, seconds) in enumerate(story.seconds.items())
    ]
    return section("Time of each act", "On this machine, one after another.", charts.bars(rows))


def _regions(story: Story) -> str:
    totals: dict[str, int] = defaultdict(int)
    for window in story.windows:
        totals[window["topic"]] += window["messages"]
    rows = [(topic, [Bar(0, count, f"{count:,}")]) for topic, count in sorted(totals.items())]
    return section(
        "Events by topic",
        "As Spark counted them, window by window, and wrote them back to the bus.",
        charts.bars(rows),
    )


def _latency(story: Story) -> str:
    started = min(_second(window["start"]) for window in story.windows)
    slowest: dict[float, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for window in story.windows:
        moment = slowest[_second(window["end"]) - started]
        for name in ("latency_ms_50", "latency_ms_99"):
            moment[name] = max(moment[name], window[name])
    lines = [
        (number, [Point(at, moment[name], "") for at, moment in sorted(slowest.items())])
        for number, name in enumerate(("latency_ms_50", "latency_ms_99"))
    ]
    return section(
        "From the event to the disk",
        "Time from the creation of an event until it is stored, by the second, under full load; "
        "the slowest topic.",
        charts.timeline(lines, spell=lambda value: f"{value:g} ms"),
        ("half of them", "99 %"),
    )


def _second(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def closing_screen(story: Story) -> str:
    """Return the figures for the terminal."""
    marks = [f"  {'✓' if holds else '✗'} {claim}" for claim, holds in story.checks().items()]
    if story.without_spark:
        marks.append(f"  - without Spark: {story.without_spark}")
    figures = (
        f"  {human_rate(rate(story))} through the bus, "
        f"{story.shop.failures:,} handler failures on purpose, "
        f"a killed process replaced after {story.shop.taken_over_s:.1f} s, "
        f"broker memory {story.resident_bytes / MIB:.0f} MB"
    )
    return "\n".join([*marks, figures])
