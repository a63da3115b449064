"""Figures that change: redrawn in place on a terminal, a line at a time elsewhere."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock.cli.arguments import argument
from penstock.cli.context import Context
from penstock.cli.units import read_duration
from penstock.times import SECOND_NS

UP_AND_CLEAR = "\x1b[{}A\x1b[J"

WATCH = (
    argument(
        "--interval",
        metavar="DURATION",
        type=read_duration,
        default=SECOND_NS,
        doc="Time between two looks; 1s.",
    ),
    argument("--count", metavar="NUMBER", type=int, default=0, doc="End after so many looks."),
)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One look: several lines for a terminal, one for a log, a document for a script."""

    screen: str
    line: str
    document: dict[str, Any]


async def watch(context: Context, look: Callable[[], Awaitable[Figures]]) -> None:
    """Look again and again, and show what there is; Ctrl-C ends it."""
    arguments = context.arguments
    in_place = sys.stdout.isatty() and not arguments.json
    looks, height = 0, 0
    while True:
        figures = await look()
        if in_place:
            lines = fitting(figures.screen, shutil.get_terminal_size())
            erase = UP_AND_CLEAR.format(height) if height else ""
            print(erase + "\n".join(lines), flush=True)
            height = len(lines)
        else:
            context.show_event(figures.line, figures.document)
        looks += 1
        if looks == arguments.count:
            return
        await asyncio.sleep(arguments.interval / SECOND_NS)


def fitting(screen: str, size: tuple[int, int]) -> list[str]:
    """Return what fits on the terminal: what wraps or scrolls could not be redrawn in place."""
    columns, rows = size
    return [line[:columns] for line in screen.splitlines()[: rows - 1]]


class Rate:
    """How fast a counter moves, from one look to the next."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._time_s = 0.0

    def per_second(self, count: int, now_s: float) -> float:
        """Return the rate since the last look; 0 at the first."""
        before, before_s = self._count, self._time_s
        self._count, self._time_s = count, now_s
        if before is None or now_s <= before_s:
            return 0.0
        return (count - before) / (now_s - before_s)
