"""Lines over time as one page of HTML: no script, no file beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 160, 90, 20
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 720px; margin: 2em auto; padding: 0 1em;
  color: light-dark(#222, #ddd); background: light-dark(#fff, #181818); color-scheme: light dark }
h2 { font-size: 1em; margin: 2em 0 0 } p { margin: 0; opacity: .7 } svg { width: 100% }
path { fill: none; stroke: #2a78c2; stroke-width: 2 } circle { fill: #2a78c2 }
line { stroke: currentColor; opacity: .2 } text { font-size: 12px; fill: currentColor }
"""


class Plot(NamedTuple):
    """One line: what it is of, what is said below that, and its points in order of time."""

    title: str
    note: str
    points: Sequence[tuple[str, float]]


def page(title: str, plots: Iterable[Plot]) -> str:
    """Return the whole page."""
    drawn = "".join(
        f"<h2>{escape(plot.title)}</h2><p>{escape(plot.note)}</p>{_drawing(plot.points)}"
        for plot in plots
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{escape(title)}</h1>{drawn or '<p>no results yet</p>'}</html>\n"
    )


def _drawing(points: Sequence[tuple[str, float]]) -> str:
    top = max(value for _, value in points) or 1.0
    step = (WIDTH - LEFT - 10) / max(len(points) - 1, 1)
    floor = HEIGHT - BOTTOM
    places = [
        (LEFT + index * step, floor - value / top * (floor - 10))
        for index, (_, value) in enumerate(points)
    ]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4">'
        f"<title>{escape(time)}: {value:,.0f}</title></circle>"
        for (x, y), (time, value) in zip(places, points, strict=True)
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="{floor}" y2="{floor}"/>'
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="10" y2="10"/>'
        f'<text x="0" y="14">{top:,.0f}</text><text x="0" y="{floor}">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">{escape(points[0][0][:10])}</text>'
        f'<text x="{WIDTH - 75}" y="{HEIGHT - 4}">{escape(points[-1][0][:10])}</text>'
        f'<path d="M{path}"/>{dots}</svg>'
    )
