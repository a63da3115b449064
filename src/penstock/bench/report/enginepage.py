"""Engines of the event bus side by side, as one self-contained page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape

from penstock.bench.report import charts, machine, sections
from penstock.bench.report.charts import Bar, Point
from penstock.bench.report.style import document
from penstock.bench.scenarios.engines import METRICS, ComparedFigure, LoadFigures, of

METHOD = """\
<ul>
<li>The same program on every engine: envelopes with a payload of 256 bytes, of 1000 aggregates,
one handler that counts, the preset high_throughput.</li>
<li>The same durability: every broker syncs to the disk before it acks.</li>
<li>The clock runs from the first publish to the last handled event, after a warm-up; nothing in
between waits on purpose. An event out of order is a failure, not a figure.</li>
<li>Latency is from the call of publish to the handler, while all are published as fast as the
window lets them: it is mostly waiting behind other events.</li>
<li>The embedded engine has its broker in the program, so the memory of both is one figure.</li>
</ul>"""


def render(figures: Sequence[LoadFigures], engines: Sequence[str], *, rounds: int) -> str:
    """Return the page."""
    title = f"The event bus on {' and '.join(engines)}"
    loads = list(dict.fromkeys(one.messages for one in figures))
    parts = [
        _header(title, rounds),
        _growth(figures, engines, loads),
        *(_bars(figures, engines, loads, metric) for metric in METRICS[1:]),
        _table(figures, engines, loads),
        sections.section("How it was measured", "", METHOD),
    ]
    return document(title, "\n".join(parts))


def _header(title: str, rounds: int) -> str:
    turns = "one round" if rounds == 1 else f"{rounds} rounds, engines taking turns"
    return (
        f'<header><p class="kicker">penstock bench</p><h1>{escape(title)}</h1>'
        f'<p class="quiet">{escape(machine.describe())}<br>'
        f"{time.strftime('%-d %B %Y, %H:%M')} · {turns}</p></header>"
    )


def _growth(figures: Sequence[LoadFigures], engines: Sequence[str], loads: Sequence[int]) -> str:
    series = [
        (
            number,
            [
                Point(messages, one.rate, f"{engine}: {one.rate:,.0f}/s")
                for messages in loads
                if (one := of(figures, engine, messages)) is not None
            ],
        )
        for number, engine in enumerate(engines)
    ]
    chart = charts.lines(series, x_label="events", spell=sections.axis_rate)
    lead = "Events per second from publish to handler, with a growing number of events."
    return sections.section("Growth with load", lead, chart, engines)


def _bars(
    figures: Sequence[LoadFigures],
    engines: Sequence[str],
    loads: Sequence[int],
    metric: ComparedFigure,
) -> str:
    rows = [
        (
            f"{messages:,} events",
            [_bar(figures, n, one, messages, metric) for n, one in enumerate(engines)],
        )
        for messages in loads
    ]
    return sections.section(metric.name.capitalize(), "", charts.bars(rows), engines)


def _bar(
    figures: Sequence[LoadFigures], number: int, engine: str, messages: int, metric: ComparedFigure
) -> Bar:
    one = of(figures, engine, messages)
    if one is None:
        return Bar(number, None, "not measured")
    return Bar(number, metric.read(one), metric.spell(metric.read(one)))


def _table(figures: Sequence[LoadFigures], engines: Sequence[str], loads: Sequence[int]) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in ("", *engines))
    rows = []
    for messages in loads:
        for metric in METRICS:
            found = [of(figures, engine, messages) for engine in engines]
            cells = "".join(
                f"<td>{escape(metric.spell(metric.read(one))) if one is not None else '-'}</td>"
                for one in found
            )
            rows.append(f"<tr><th>{messages:,} events: {escape(metric.name)}</th>{cells}</tr>")
    content = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return sections.section("Every figure", "The median round of each.", content)
