"""A progress bar with the current rate, on a terminal."""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from typing import TextIO

from penstock.bench.scenarios.plan import Plan

RATE_OVER_S = 1.0
BAR_CELLS_MIN, BAR_CELLS_MAX = 10, 30
EIGHTHS = " ▏▎▍▌▋▊▉"
BLUE, PLAIN = "\x1b[34m", "\x1b[0m"
CLEAR_LINE = "\r\x1b[2K"


class Progress:
    """Redraws one line; silent without a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = out.isatty()
        self._coloured = self._shown and not os.environ.get("NO_COLOR")
        self._seen: deque[tuple[float, int]] = deque()

    def show(self, plan: Plan, server: str, done: int, expected: int) -> None:
        """Draw the progress of a run."""
        if not self._shown:
            return
        label = f"{server} {plan.scenario} {plan.shape}"
        line = self._line(label, min(done, expected), expected, self._rate(done))
        self._out.write(CLEAR_LINE + line)
        self._out.flush()

    def clear(self) -> None:
        """Remove the line and forget the run."""
        self._seen.clear()
        if self._shown:
            self._out.write(CLEAR_LINE)
            self._out.flush()

    def _rate(self, done: int) -> float:
        """Return the rate of the last moment, not since the start."""
        now_s = time.monotonic()
        self._seen.append((now_s, done))
        while now_s - self._seen[0][0] > RATE_OVER_S and len(self._seen) > 2:
            self._seen.popleft()
        then_s, before = self._seen[0]
        return (done - before) / (now_s - then_s) if now_s > then_s else 0.0

    def _line(self, label: str, done: int, expected: int, rate: float) -> str:
        share = done / expected if expected else 0.0
        figures = f" {share:4.0%}  {rate:>11,.0f} msgs/s"
        # Keep one column free, so that no terminal wraps the line.
        room = shutil.get_terminal_size().columns - len(figures) - 3
        label = shorten(label, room - BAR_CELLS_MIN)
        drawn = bar(share, min(room - len(label), BAR_CELLS_MAX))
        if self._coloured:
            drawn = f"{BLUE}{drawn}{PLAIN}"
        return f"{label}  {drawn}{figures}"


def shorten(text: str, length: int) -> str:
    """Shorten a text to a length."""
    return text if len(text) <= length else text[: max(length - 1, 0)] + "…"


def bar(share: float, cells: int) -> str:
    """Return a bar, precise to an eighth of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * cells * 8)
    full, rest = divmod(eighths, 8)
    partial = EIGHTHS[rest] if rest else ""
    return ("█" * full + partial).ljust(cells, "░")
