"""The chart sections of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from penstock.bench.report import charts
from penstock.bench.report.charts import Bar, Point
from penstock.bench.report.report import human_bytes, human_time
from penstock.bench.scenarios.compare import (
    GROWTH,
    LATENCY,
    STREAMS,
    THROUGHPUT,
    Result,
    human_rate,
)

TIMES = "&times;"


def section(title: str, lead: str, content: str, servers: Sequence[str] = ()) -> str:
    """Return a section with a key to its colours; an empty string if it has no content."""
    if not content:
        return ""
    text = f'<p class="lead">{lead}</p>' if lead else ""
    return f"<section>{_key(servers)}<h2>{escape(title)}</h2>{text}{content}</section>"


def throughput(results: Sequence[Result], servers: Sequence[str]) -> str:
    """Return bars of the rates of core NATS."""
    rows = [(result.shape.name, _rate_bars(result, servers)) for result in _of(results, THROUGHPUT)]
    return section(
        "Throughput by shape",
        f"Publishers {TIMES} subscribers {TIMES} payload; messages per second in and out. "
        "Thin lines: the rounds.",
        charts.bars(rows) if rows else "",
        servers,
    )


def growth(results: Sequence[Result], servers: Sequence[str]) -> str:
    """Return lines of the rates for a growing number of subscribers."""
    series = [(number, _growth_line(results, server)) for number, server in enumerate(servers)]
    drawn = [(number, line) for number, line in series if line]
    return section(
        "Growth with subscribers",
        "One publisher, 128 B; messages per second in and out as the audience grows.",
        charts.lines(drawn, x_label="subscribers", spell=axis_rate) if drawn else "",
        servers,
    )


def latencies(results: Sequence[Result], servers: Sequence[str]) -> str:
    """Return curves of latency by percentile, a section for each shape."""
    return "\n".join(
        section(
            f"Latency: {result.shape.name}",
            "Each step to the right leaves a tenth of the messages; lower is better.",
            charts.percentiles(
                [
                    (number, one.latency_ns)
                    for number, server in enumerate(servers)
                    if (one := result.sound(server)) is not None
                ],
                spell=human_time,
            ),
            servers,
        )
        for result in _of(results, LATENCY)
    )


def streams(results: Sequence[Result], servers: Sequence[str]) -> str:
    """Return bars of the rates of JetStream; each row has its own scale."""
    rows = [
        (result.shape.name.removesuffix(" 128 B"), _rate_bars(result, servers))
        for result in _of(results, STREAMS)
    ]
    return section(
        "JetStream and Key/Value",
        "Messages per second, each acked, 128 B on disk; bars are to scale within a row. Penstock "
        "syncs before it acks; nats-server does so only if configured, as <b>nats-sync</b> is.",
        charts.bars(rows, relative=True) if rows else "",
        servers,
    )


def memory(results: Sequence[Result], servers: Sequence[str]) -> str:
    """Return bars of the memory for a growing number of subscribers."""
    rows = []
    for result in _of(results, GROWTH):
        bars = [_memory_bar(result, number, server) for number, server in enumerate(servers)]
        count = result.shape.plan.subscribers
        if any(bar.value for bar in bars):
            rows.append((f"{count:,} subscriber{'s' if count > 1 else ''}", bars))
    return section(
        "Memory",
        "Resident memory of the server after the last message, with all clients connected.",
        charts.bars(rows) if rows else "",
        servers,
    )


def axis_rate(rate: float) -> str:
    """Return a rate, short enough for an axis."""
    if rate >= 1e6:
        return f"{rate / 1e6:g} M/s"
    return f"{rate / 1e3:g} k/s" if rate >= 1e3 else f"{rate:g}"


def _of(results: Sequence[Result], chart: str) -> list[Result]:
    return [result for result in results if chart in result.shape.charts]


def _key(servers: Sequence[str]) -> str:
    items = "".join(
        f'<span><i class="k{number}"></i>{escape(server)}</span>'
        for number, server in enumerate(servers)
    )
    return f'<p class="key">{items}</p>' if len(servers) > 1 else ""


def _rate_bars(result: Result, servers: Sequence[str]) -> list[Bar]:
    if result.shape.note:
        return [Bar(0, None, result.shape.note.partition(": ")[2].replace("`", ""))]
    return [_rate_bar(result, number, server) for number, server in enumerate(servers)]


def _rate_bar(result: Result, number: int, server: str) -> Bar:
    one = result.sound(server)
    if one is None:
        return Bar(number, None, "failed" if result.outcome(server) else "not measured")
    return Bar(number, one.rate, human_rate(one.rate), result.spread(server))


def _memory_bar(result: Result, number: int, server: str) -> Bar:
    one = result.sound(server)
    size = one.resident_bytes if one is not None else None
    return Bar(number, size, human_bytes(size) if size else "not known")


def _growth_line(results: Sequence[Result], server: str) -> list[Point]:
    return [
        Point(result.shape.plan.subscribers, one.rate, f"{server}: {human_rate(one.rate)}")
        for result in _of(results, GROWTH)
        if (one := result.sound(server)) is not None
    ]
