"""
Charts as SVG: bars, lines, and latency by percentile.

A chart is text to embed in a page. Colours are classes, `c0` for the first server and so
on, so that the page's style decides about light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from penstock.bench.report.histogram import Histogram

WIDTH = 720
LABEL_WIDTH = 196
VALUE_WIDTH = 92
BAR_HEIGHT = 15
BAR_GAP = 3
ROW_GAP = 18

PLOT_HEIGHT = 300
LEFT, RIGHT, TOP, BOTTOM = 74, 18, 14, 44

TIME_TICKS = 6
PERCENT_TICKS = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
SECOND_STEPS = (1, 2, 5, 10)
HALVED_TWICE = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)
"""Numbers that stay round when divided into four equal steps."""


class Bar(NamedTuple):
    """One bar: its series, its length, its label, and the range of the rounds."""

    series: int
    value: float | None
    text: str
    spread: tuple[float, float] | None = None


class Point(NamedTuple):
    """One point of a line."""

    x: float
    y: float
    text: str


def bars(rows: Sequence[tuple[str, Sequence[Bar]]], *, relative: bool = False) -> str:
    """
    Return horizontal bars, a group for each row.

    Relative bars fill the width in each row: they compare the servers of a row, but not the
    rows.
    """
    longest = max((_longest(group) for _, group in rows), default=0.0)
    y, parts = 4.0, []
    for label, group in rows:
        scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / (
            (_longest(group) if relative else longest) or 1
        )
        middle = y + len(group) * (BAR_HEIGHT + BAR_GAP) / 2 - BAR_GAP / 2
        parts.append(_text(LABEL_WIDTH - 12, middle, label, "label end"))
        for bar in group:
            parts.append(_bar(bar, y, scale))
            y += BAR_HEIGHT + BAR_GAP
        y += ROW_GAP
    return _svg(y - ROW_GAP + 4, parts)


def lines(
    series: Sequence[tuple[int, Sequence[Point]]],
    *,
    x_label: str,
    spell: Callable[[float], str],
) -> str:
    """Return lines over a logarithmic x axis; the y axis begins at 0."""
    points = [point for _, line in series for point in line]
    if not points:
        return _nothing()
    xs = sorted({point.x for point in points})
    top = nice_ceiling(max(point.y for point in points))
    x_at = _scale(math.log10(xs[0]), math.log10(xs[-1]), LEFT + 16, WIDTH - RIGHT - 16)
    y_at = _scale(0.0, top, PLOT_HEIGHT - BOTTOM, TOP)
    parts = [_grid_y(y_at(top * step / 4), spell(top * step / 4)) for step in range(5)]
    parts += [_tick_x(x_at(math.log10(x)), f"{x:,.0f}") for x in xs]
    parts.append(_text(WIDTH / 2, PLOT_HEIGHT - 6, x_label, "axis middle"))
    for number, line in series:
        places = [(x_at(math.log10(point.x)), y_at(point.y)) for point in line]
        parts.append(_path(number, places))
        parts += [
            _dot(number, place, point.text) for place, point in zip(places, line, strict=True)
        ]
    return _svg(PLOT_HEIGHT, parts)


def timeline(
    series: Sequence[tuple[int, Sequence[Point]]], *, spell: Callable[[float], str]
) -> str:
    """Return lines over the seconds since a start; the y axis begins at 0."""
    points = [point for _, line in series for point in line]
    if not points:
        return _nothing()
    end = max(point.x for point in points)
    step_s = nice_ceiling(end / TIME_TICKS, steps=SECOND_STEPS)
    top = nice_ceiling(max(point.y for point in points))
    x_at = _scale(0.0, end, LEFT, WIDTH - RIGHT)
    y_at = _scale(0.0, top, PLOT_HEIGHT - BOTTOM, TOP)
    parts = [_grid_y(y_at(top * step / 4), spell(top * step / 4)) for step in range(5)]
    ticks = [step_s * step for step in range(TIME_TICKS + 1) if step_s * step <= end]
    parts += [_tick_x(x_at(tick), f"{tick:g} s") for tick in ticks]
    for number, line in series:
        parts.append(_path(number, [(x_at(point.x), y_at(point.y)) for point in line]))
    return _svg(PLOT_HEIGHT, parts)


def percentiles(series: Sequence[tuple[int, Histogram]], *, spell: Callable[[float], str]) -> str:
    """Return latency by percentile; each step to the right leaves a tenth of the messages."""
    series = [(number, histogram) for number, histogram in series if histogram.count]
    if not series:
        return _nothing()
    last = max(math.log10(histogram.count) for _, histogram in series)
    low = math.log10(max(min(histogram.percentile(0) for _, histogram in series), 1))
    high = math.log10(max(histogram.maximum for _, histogram in series))
    ticks = decade_ticks(low, high)
    x_at = _scale(0.0, max(last, 1.0), LEFT, WIDTH - RIGHT)
    y_at = _scale(math.log10(ticks[0]), math.log10(ticks[-1]), PLOT_HEIGHT - BOTTOM, TOP)
    parts = [_grid_y(y_at(math.log10(tick)), spell(tick)) for tick in ticks]
    for percent in PERCENT_TICKS:
        if nines(percent) <= last:
            parts.append(_tick_x(x_at(nines(percent)), f"{percent:g} %", grid=True))
    parts.append(
        _text(
            WIDTH / 2,
            PLOT_HEIGHT - 6,
            "percentage of messages with at most this latency",
            "axis middle",
        )
    )
    for number, histogram in series:
        places = [
            (x_at(position), y_at(math.log10(max(value, 1))))
            for position, value in curve(histogram)
        ]
        parts.append(_path(number, places))
    return _svg(PLOT_HEIGHT, parts)


def curve(histogram: Histogram, *, steps: int = 160) -> list[tuple[float, int]]:
    """Return latency over `nines`, from the fastest message to the slowest."""
    end = math.log10(histogram.count) if histogram.count > 1 else 0.0
    positions = [end * step / steps for step in range(steps + 1)]
    percents = [100.0 * (1 - 10**-position) for position in positions[:-1]]
    values = [*histogram.percentiles(percents), histogram.maximum]
    return list(zip(positions, values, strict=True))


def nines(percent: float) -> float:
    """Return the position of a percentage on the axis: 90 at 1, 99 at 2, 99.9 at 3."""
    return -math.log10(1 - percent / 100)


def nice_ceiling(value: float, *, steps: Sequence[float] = HALVED_TWICE) -> float:
    """Return a round number not below `value`: one of the steps, times a power of ten."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in steps if step * power >= value)


def decade_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten that enclose a range of logarithms."""
    ticks = [
        float(step * 10**power)
        for power in range(math.floor(low) - 1, math.ceil(high) + 2)
        for step in (1, 2, 5)
    ]
    logs = [math.log10(tick) for tick in ticks]
    first = max(index for index, log in enumerate(logs) if log <= low + 1e-9)
    last = min(index for index, log in enumerate(logs) if log >= high - 1e-9)
    chosen = ticks[first : max(last, first + 1) + 1]
    # Over many decades, draw only the powers of ten and the two ends.
    if len(chosen) > 9:
        inner = [tick for tick in chosen[1:-1] if round(math.log10(tick), 6).is_integer()]
        chosen = [chosen[0], *inner, chosen[-1]]
    return chosen


def _longest(group: Sequence[Bar]) -> float:
    return max((max(bar.value or 0.0, (bar.spread or (0, 0))[1]) for bar in group), default=0.0)


def _bar(bar: Bar, y: float, scale: float) -> str:
    if bar.value is None:
        return _text(LABEL_WIDTH + 4, y + BAR_HEIGHT / 2, bar.text, "value quiet")
    width = max(bar.value * scale, 1.5)
    end = width
    parts = [
        f'<rect class="c{bar.series}" x="{LABEL_WIDTH}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{BAR_HEIGHT}" rx="3"/>'
    ]
    if bar.spread and bar.spread[1] - bar.spread[0] > 0.02 * bar.value:
        low, high = (LABEL_WIDTH + value * scale for value in bar.spread)
        middle = y + BAR_HEIGHT / 2
        end = max(end, high - LABEL_WIDTH)
        parts.append(f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}"/>')
    parts.append(_text(LABEL_WIDTH + end + 7, y + BAR_HEIGHT / 2, bar.text, "value"))
    return "".join(parts)


def _path(number: int, places: Sequence[tuple[float, float]]) -> str:
    steps = "".join(
        f"{'L' if index else 'M'}{x:.1f} {y:.1f}" for index, (x, y) in enumerate(_thinned(places))
    )
    return f'<path class="line l{number}" d="{steps}"/>'


def _thinned(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave out points between two of the same height."""
    if len(places) < 3:
        return list(places)
    kept = [places[0]]
    for (here, there), (_, after) in zip(pairwise(places), pairwise(places[1:]), strict=False):
        if not here[1] == there[1] == after[1]:
            kept.append(there)
    return [*kept, places[-1]]


def _dot(number: int, place: tuple[float, float], text: str) -> str:
    x, y = place
    return (
        f'<circle class="c{number} dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5">'
        f"<title>{escape(text)}</title></circle>"
    )


def _grid_y(y: float, text: str) -> str:
    line = f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
    return line + _text(LEFT - 10, y, text, "axis end")


def _tick_x(x: float, text: str, *, grid: bool = False) -> str:
    bottom = PLOT_HEIGHT - BOTTOM
    line = f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>' if grid else ""
    return line + _text(x, bottom + 15, text, "axis middle")


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return start + (value - low) / span * (end - start)

    return place


def _text(x: float, y: float, text: str, classes: str) -> str:
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}" dy=".35em">{escape(text)}</text>'


def _nothing() -> str:
    return _svg(40, [_text(WIDTH / 2, 20, "nothing measured", "axis middle")])


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'
