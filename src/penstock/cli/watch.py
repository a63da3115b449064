"""Live figures: redrawn in place on a terminal, one line at a time elsewhere."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from penstock.cli.arguments import argument
from penstock.cli.context import Context
from penstock.cli.values import read_positive
from penstock.errors import ConnectionLost, NoResponders, RequestTimeout
from penstock.protocol.times import SECOND_NS
from penstock.protocol.units import read_duration

UP_AND_CLEAR = "\x1b[{}A\x1b[J"

WATCH = (
    argument(
        "--interval",
        metavar="DURATION",
        type=read_duration,
        default=SECOND_NS,
        doc="Time between two updates (default: 1s).",
    ),
    argument(
        "--count", metavar="NUMBER", type=read_positive, doc="Stop after this number of updates."
    ),
)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One update: several lines for a terminal, one for a log, JSON for a script."""

    screen: str
    line: str
    document: dict[str, Any]


async def watch(context: Context, look: Callable[[], Awaitable[Figures]]) -> None:
    """Show updated figures until Ctrl-C."""
    arguments = context.arguments
    screen = LiveLines() if sys.stdout.isatty() and not arguments.json else None
    looks = 0
    while True:
        figures = await _look(context, look) if looks else await look()
        if figures is not None and screen is not None:
            screen.draw(figures.screen)
        elif figures is not None:
            context.show_event(figures.line, figures.document)
        elif screen is not None:
            screen.leave()
        looks += 1
        if looks == arguments.count:
            return
        await asyncio.sleep(arguments.interval / SECOND_NS)


async def _look(context: Context, look: Callable[[], Awaitable[Figures]]) -> Figures | None:
    """Return new figures, or None while the server is away."""
    try:
        return await look()
    except (ConnectionLost, RequestTimeout, NoResponders):
        if context.client.closed:
            raise
        return None


class LiveLines:
    """A few lines of a terminal, redrawn in place."""

    def __init__(self) -> None:
        self._height = 0

    def draw(self, text: str) -> None:
        """Replace the last text by this one."""
        lines = fitting(text, shutil.get_terminal_size())
        erase = UP_AND_CLEAR.format(self._height) if self._height else ""
        print(erase + "\n".join(lines), flush=True)
        self._height = len(lines)

    def leave(self) -> None:
        """Leave the last text alone: something else was written below it."""
        self._height = 0


def fitting(screen: str, size: tuple[int, int]) -> list[str]:
    """Return the lines that fit the terminal: wrapped or scrolled lines cannot be redrawn."""
    columns, rows = size
    return [line[:columns] for line in screen.splitlines()[: rows - 1]]


class Rate:
    """The rate of a counter between two updates."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._time_s = 0.0

    def per_second(self, count: int, now_s: float) -> float:
        """Return the rate since the last update; 0 for the first."""
        before, before_s = self._count, self._time_s
        self._count, self._time_s = count, now_s
        if before is None or now_s <= before_s:
            return 0.0
        return (count - before) / (now_s - before_s)
