"""
Text on a terminal: colour, tables, and the progress of long work.

A pipe or a file gets plain text, and so does everybody who sets NO_COLOR.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TextIO

from penstock.cli.values import show_size
from penstock.protocol.tables import render

BOLD, RED, GREEN, YELLOW, CYAN = 1, 31, 32, 33, 36
REDRAW_S = 0.1
CLEAR_LINE = "\r\x1b[2K"


def has_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal of somebody who wants colour."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and stream.isatty()


def coloured(text: str, colour: int, stream: TextIO | None = None) -> str:
    """Return a text in a colour, if its stream has any."""
    return f"\x1b[{colour}m{text}\x1b[0m" if has_colour(stream or sys.stdout) else text


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return the one kind of table that commands print."""
    first, newline, rest = render(header, rows, left=left).partition("\n")
    return coloured(first, BOLD) + newline + rest


class Progress:
    """One line that shows how far long work is; silent without a terminal."""

    def __init__(self, label: str, total: int, *, shown: bool = True) -> None:
        self._label = label
        self._total = total
        self._shown = shown and sys.stderr.isatty()
        self._drawn_s = 0.0

    def show(self, done: int) -> None:
        """Draw the bytes that are done, unless that was a moment ago."""
        now_s = time.monotonic()
        if self._shown and now_s - self._drawn_s >= REDRAW_S:
            self._drawn_s = now_s
            share = f" {min(done / self._total, 1.0):4.0%}" if self._total else ""
            line = f"{self._label}{share}  {show_size(done)}"
            width = shutil.get_terminal_size().columns - 1
            print(CLEAR_LINE + line[:width], end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._drawn_s:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
