"""The comparison as one page that stands alone: no network, no scripts, light and dark."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from html import escape

from penstock.bench import charts, machine
from penstock.bench.charts import Bar, Point
from penstock.bench.compare import (
    GROWTH,
    LATENCY,
    STREAMS,
    THROUGHPUT,
    Result,
    human_rate,
    is_about_time,
    lines,
    reason,
)
from penstock.bench.report import human_bytes, human_time
from penstock.bench.style import CSS

TIMES = "&times;"


def render(results: Sequence[Result], servers: Sequence[str], *, rounds: int) -> str:
    """Return the page."""
    title = " beside ".join(servers)
    sections = [
        _header(title, results, servers, rounds),
        _tiles(results, servers),
        _throughput(results, servers),
        _growth(results, servers),
        *_latencies(results, servers),
        _streams(results, servers),
        _memory(results, servers),
        _table(results, servers),
        _method(rounds),
    ]
    body = "\n".join(filter(None, sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{CSS}</style>\n"
        f"</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _header(title: str, results: Sequence[Result], servers: Sequence[str], rounds: int) -> str:
    versions = {server: _version(results, server) for server in servers}
    chips = "".join(
        f'<li><i class="k{number}"></i><b>{escape(server)}</b> {escape(versions[server])}</li>'
        for number, server in enumerate(servers)
    )
    when = time.strftime("%-d %B %Y, %H:%M")
    turns = "one round" if rounds == 1 else f"{rounds} rounds, taking turns"
    return (
        f'<header><p class="kicker">penstock bench</p><h1>{escape(title)}</h1>'
        f'<ul class="servers">{chips}</ul>'
        f'<p class="quiet">{escape(machine.describe())}<br>{when} · {turns}</p></header>'
    )


def _tiles(results: Sequence[Result], servers: Sequence[str]) -> str:
    """Return the few figures somebody in a hurry should take along."""
    if len(servers) < 2:
        return ""
    first, other = servers[0], servers[1]
    tiles = [
        _tile(_mean_ratio(results, THROUGHPUT, first, other), "the throughput", "core pub/sub"),
        _tile(_mean_ratio(results, LATENCY, first, other), "the median latency", "core, unhurried"),
        _tile(
            _mean_ratio(results, STREAMS, first, other), "the JetStream rate", "publish, consume"
        ),
        _tile(_memory_ratio(results, first, other), "the memory", "most subscribers"),
    ]
    shown = "".join(tiles)
    if not shown:
        return ""
    legend = f'<p class="quiet">{escape(first)} against {escape(other)}</p>'
    return f'<div class="tiles">{shown}</div>{legend}'


def _tile(ratio: float | None, what: str, where: str) -> str:
    if ratio is None:
        return ""
    text = f"{ratio:.1f}" if ratio >= 1.95 else f"{ratio:.2f}"
    return f"<div><strong>{text}{TIMES}</strong><span>{what}</span><small>{where}</small></div>"


def _throughput(results: Sequence[Result], servers: Sequence[str]) -> str:
    rows = _rate_rows(results, THROUGHPUT, servers)
    return _section(
        "Throughput by shape",
        f"Publishers {TIMES} subscribers {TIMES} payload; messages per second in and out. "
        "The whisker spans the rounds.",
        charts.bars(rows) if rows else "",
    )


def _streams(results: Sequence[Result], servers: Sequence[str]) -> str:
    rows = _rate_rows(results, STREAMS, servers)
    return _section(
        "JetStream and Key/Value",
        "Messages per second, acked. Bars are to scale within a row.",
        charts.bars(rows, relative=True) if rows else "",
    )


def _growth(results: Sequence[Result], servers: Sequence[str]) -> str:
    chosen = [result for result in results if GROWTH in result.shape.charts]
    series = [
        (
            number,
            [
                Point(result.shape.plan.subscribers, one.rate, f"{server}: {human_rate(one.rate)}")
                for result in chosen
                if (one := result.sound(server)) is not None
            ],
        )
        for number, server in enumerate(servers)
    ]
    return _section(
        "Growth with subscribers",
        "One publisher, 128 B; messages per second in and out as the audience grows.",
        charts.lines(
            [(number, line) for number, line in series if line],
            x_label="subscribers",
            spell=human_rate,
        )
        if any(line for _, line in series)
        else "",
    )


def _latencies(results: Sequence[Result], servers: Sequence[str]) -> list[str]:
    sections = []
    for result in results:
        if LATENCY in result.shape.charts:
            series = [
                (number, one.latency_ns)
                for number, server in enumerate(servers)
                if (one := result.sound(server)) is not None
            ]
            sections.append(
                _section(
                    f"Latency: {result.shape.name}",
                    "Each step to the right leaves a tenth of the messages; lower is better.",
                    charts.percentiles(series, spell=human_time) if series else "",
                )
            )
    return sections


def _memory(results: Sequence[Result], servers: Sequence[str]) -> str:
    rows = []
    for result in results:
        if GROWTH not in result.shape.charts:
            continue
        group = []
        for number, server in enumerate(servers):
            one = result.sound(server)
            size = one.resident_bytes if one is not None else None
            group.append(Bar(number, size, human_bytes(size) if size else "-"))
        if any(bar.value for bar in group):
            rows.append((f"{result.shape.plan.subscribers:,} subscribers", group))
    return _section(
        "Memory",
        "Resident in the server after the last message, everybody still connected.",
        charts.bars(rows) if rows else "",
    )


def _table(results: Sequence[Result], servers: Sequence[str]) -> str:
    first, *others = servers
    heads = ["shape", *servers, *(f"{first} / {other}" for other in others)]
    body = []
    for result in results:
        if result.shape.note:
            body.append(_table_note(result.shape.name, result.shape.note, len(heads) - 1))
            continue
        for line in lines(result, servers):
            cells = [f"<th>{escape(line.label)}</th>"]
            cells += [f"<td>{escape(line.texts[server])}</td>" for server in servers]
            cells += [
                _ratio_cell(line.ratio(first, other), line.more_is_better) for other in others
            ]
            body.append(f"<tr>{''.join(cells)}</tr>")
    reasons = [
        f"<li>{escape(result.shape.name)}, {escape(server)}: {escape(reason(one))}</li>"
        for result in results
        for server in servers
        if (one := result.outcome(server)) is not None and not one.sound and not one.interrupted
    ]
    header = "".join(f"<th>{escape(head)}</th>" for head in heads)
    below = f'<ul class="quiet">{"".join(reasons)}</ul>' if reasons else ""
    content = (
        f"<table><thead><tr>{header}</tr></thead><tbody>{''.join(body)}</tbody></table>{below}"
    )
    return _section(
        "Every figure", "The median round. A ratio in green is to the good of the first.", content
    )


def _table_note(name: str, note: str, columns: int) -> str:
    return (
        f'<tr><th>{escape(name)}</th><td class="quiet" colspan="{columns}">{escape(note)}</td></tr>'
    )


def _ratio_cell(ratio: float | None, more_is_better: bool) -> str:
    if ratio is None:
        return "<td>-</td>"
    better = ratio if more_is_better else 1 / ratio
    kind = "good" if better >= 1.05 else "bad" if better <= 0.95 else "even"
    return f'<td class="{kind}">{ratio:.2f}</td>'


def _method(rounds: int) -> str:
    return _section(
        "How it was measured",
        "",
        "<ul><li>Publishers and subscribers are processes of their own. The clock runs from the "
        "first publish to the last receive, with nothing in between that waits on purpose.</li>"
        "<li>Every message is numbered: a run with a lost, repeated or misplaced message is not "
        "a figure but a failure.</li>"
        "<li>Servers and load share this machine's cores: ratios travel further than figures."
        "</li>"
        "<li>Delivery latency is from when a message was due, so that a server that holds "
        "publishers up does not look fast for it.</li>"
        "<li>Streams are on disk. Penstock syncs before it acks; nats-server does only if told "
        "to, as <code>nats-sync</code> is.</li></ul>",
    )


def _section(title: str, lead: str, content: str) -> str:
    if not content:
        return ""
    text = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section><h2>{escape(title)}</h2>{text}{content}</section>"


def _rate_rows(
    results: Sequence[Result], chart: str, servers: Sequence[str]
) -> list[tuple[str, list[Bar]]]:
    rows = []
    for result in results:
        if chart not in result.shape.charts:
            continue
        bars = [_rate_bar(result, number, server) for number, server in enumerate(servers)]
        if result.shape.note:
            bars = [Bar(0, None, result.shape.note.partition(": ")[2].replace("`", ""))]
        rows.append(
            (
                result.shape.name.removesuffix(" 128 B") if chart == STREAMS else result.shape.name,
                bars,
            )
        )
    return rows


def _rate_bar(result: Result, number: int, server: str) -> Bar:
    one = result.sound(server)
    if one is None:
        return Bar(number, None, "failed" if result.outcome(server) else "not measured")
    return Bar(number, one.rate, human_rate(one.rate), result.spread(server))


def _mean_ratio(results: Sequence[Result], chart: str, first: str, other: str) -> float | None:
    """Return the geometric mean of the ratios of a chart: the only mean that ratios have."""
    ratios = []
    for result in results:
        mine, theirs = result.sound(first), result.sound(other)
        if chart not in result.shape.charts or mine is None or theirs is None:
            continue
        if chart == STREAMS or not is_about_time(result.shape.plan):
            ratios.append(mine.rate / theirs.rate)
        else:
            ratios.append(mine.latency_ns.percentile(50) / theirs.latency_ns.percentile(50))
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def _memory_ratio(results: Sequence[Result], first: str, other: str) -> float | None:
    ratio = None
    for result in results:
        mine, theirs = result.sound(first), result.sound(other)
        if GROWTH in result.shape.charts and mine is not None and theirs is not None:
            if mine.resident_bytes and theirs.resident_bytes:
                ratio = mine.resident_bytes / theirs.resident_bytes
    return ratio


def _version(results: Sequence[Result], server: str) -> str:
    for result in results:
        one = result.outcome(server)
        if one is not None and one.version:
            return one.version
    return ""
