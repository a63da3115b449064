"""The comparison as one self-contained page: no network, no scripts, light and dark."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from html import escape

from penstock.bench.report import machine, sections
from penstock.bench.report.style import document
from penstock.bench.scenarios.compare import (
    GROWTH,
    LATENCY,
    STREAMS,
    THROUGHPUT,
    Result,
    is_about_time,
    lines,
    reason,
)

METHOD = """\
<ul>
<li>Publishers and subscribers are processes of their own. The clock runs from the first publish
to the last receive, and nothing in between waits on purpose.</li>
<li>Every message is numbered. A run with a lost, repeated or misplaced message is a failure, not
a figure.</li>
<li>Servers and load share this machine's cores: ratios travel further than figures.</li>
<li>Delivery latency counts from when a message was due, so that a server that holds publishers up
does not look fast for it.</li>
</ul>"""


def render(results: Sequence[Result], servers: Sequence[str], *, rounds: int) -> str:
    """Return the page."""
    title = _title(servers)
    parts = [
        _header(title, results, servers, rounds),
        _tiles(results, servers),
        sections.throughput(results, servers),
        sections.growth(results, servers),
        sections.latencies(results, servers),
        sections.streams(results, servers),
        sections.memory(results, servers),
        _table(results, servers),
        sections.section("How it was measured", "", METHOD),
    ]
    return document(title, "\n".join(filter(None, parts)))


def _title(servers: Sequence[str]) -> str:
    first, *others = servers
    return f"{first} and {' and '.join(others)}" if others else first


def _header(title: str, results: Sequence[Result], servers: Sequence[str], rounds: int) -> str:
    chips = "".join(
        f'<li><i class="k{number}"></i>{_name(server, _version(results, server))}</li>'
        for number, server in enumerate(servers)
    )
    when = time.strftime("%-d %B %Y, %H:%M")
    turns = "one round" if rounds == 1 else f"{rounds} rounds, servers taking turns"
    return (
        f'<header><p class="kicker">penstock bench</p><h1>{escape(title)}</h1>'
        f'<ul class="servers">{chips}</ul>'
        f'<p class="quiet">{escape(machine.describe())}<br>{when} · {turns}</p></header>'
    )


def _name(server: str, version: str) -> str:
    own, _, rest = version.partition(" ")
    if own == server:
        return f"<b>{escape(server)}</b> {escape(rest)}"
    return f"<b>{escape(server)}</b> {escape(version)}"


def _tiles(results: Sequence[Result], servers: Sequence[str]) -> str:
    """Return the most important figures."""
    if len(servers) < 2:
        return ""
    first, other = servers[0], servers[1]
    tiles = (
        (_mean_ratio(results, THROUGHPUT, first, other), True, "throughput", "core, all shapes"),
        (_mean_ratio(results, LATENCY, first, other), False, "latency", "core, the median"),
        (_mean_ratio(results, STREAMS, first, other), True, "JetStream rate", "publish, consume"),
        (_memory_ratio(results, first, other), False, "memory", "with the most subscribers"),
    )
    shown = "".join(
        _tile(ratio, _verdict(ratio, more_is_better), what, where)
        for ratio, more_is_better, what, where in tiles
        if ratio is not None
    )
    legend = f'<p class="quiet">{escape(first)} as a multiple of {escape(other)}</p>'
    return f'<div class="tiles">{shown}</div>{legend}' if shown else ""


def _tile(ratio: float, verdict: str, what: str, where: str) -> str:
    text = f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"
    return (
        f'<div><strong class="{verdict}">{text}{sections.TIMES}</strong><span>{what}</span>'
        f"<small>{where}</small></div>"
    )


def _verdict(ratio: float, more_is_better: bool) -> str:
    """Return the colour of a ratio; a difference of 5 % counts as equal."""
    better = ratio if more_is_better else 1 / ratio
    return "good" if better >= 1.05 else "bad" if better <= 0.95 else "even"


def _table(results: Sequence[Result], servers: Sequence[str]) -> str:
    first, *others = servers
    heads = ["", *servers, *(f"to {other}" for other in others)]
    header = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(_table_rows(result, servers) for result in results)
    content = f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>"
    lead = (
        f"The median round, then {escape(first)} divided by each other server: "
        "green where it is better."
    )
    return sections.section("Every figure", lead, content + _reasons(results, servers))


def _table_rows(result: Result, servers: Sequence[str]) -> str:
    first, *others = servers
    if result.shape.note:
        note = (
            f'<td class="quiet" colspan="{2 * len(servers) - 1}">{escape(result.shape.note)}</td>'
        )
        return f"<tr><th>{escape(result.shape.name)}</th>{note}</tr>"
    rows = []
    for line in lines(result, servers):
        cells = [f"<th>{escape(line.label)}</th>"]
        cells += [f"<td>{escape(line.texts[server])}</td>" for server in servers]
        cells += [_ratio_cell(line.ratio(first, other), line.more_is_better) for other in others]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return "".join(rows)


def _ratio_cell(ratio: float | None, more_is_better: bool) -> str:
    if ratio is None:
        return "<td>-</td>"
    return f'<td class="{_verdict(ratio, more_is_better)}">{ratio:.2f}</td>'


def _reasons(results: Sequence[Result], servers: Sequence[str]) -> str:
    """Return the reason for each missing figure."""
    reasons = [
        f"<li>{escape(result.shape.name)}, {escape(server)}: {escape(reason(one))}</li>"
        for result in results
        for server in servers
        if (one := result.outcome(server)) is not None and not one.sound and not one.interrupted
    ]
    return f'<ul class="quiet">{"".join(reasons)}</ul>' if reasons else ""


def _mean_ratio(results: Sequence[Result], chart: str, first: str, other: str) -> float | None:
    """Return the geometric mean of a chart's ratios: the only mean that is valid for ratios."""
    ratios = []
    for result in results:
        mine, theirs = result.sound(first), result.sound(other)
        if chart not in result.shape.charts or mine is None or theirs is None:
            continue
        if chart == LATENCY and is_about_time(result.shape.plan):
            ratios.append(mine.latency_ns.percentile(50) / theirs.latency_ns.percentile(50))
        else:
            ratios.append(mine.rate / theirs.rate)
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def _memory_ratio(results: Sequence[Result], first: str, other: str) -> float | None:
    """Return the ratio of memory at the largest number of subscribers measured."""
    ratio = None
    for result in results:
        mine, theirs = result.sound(first), result.sound(other)
        if GROWTH in result.shape.charts and mine is not None and theirs is not None:
            if mine.resident_bytes and theirs.resident_bytes:
                ratio = mine.resident_bytes / theirs.resident_bytes
    return ratio


def _version(results: Sequence[Result], server: str) -> str:
    outcomes = [one for result in results if (one := result.outcome(server)) is not None]
    return next((one.version for one in outcomes if one.version), "")
