"""The terminal output of the demo: one line per act, the current one live."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

REFRESH_S = 0.1
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
DONE = "✓"
TITLE_WIDTH = 9
CLEAR_LINE = "\r\x1b[2K"
BLUE, GREEN, PLAIN = "\x1b[34m", "\x1b[32m", "\x1b[0m"


class Act:
    """One part of the demo: its title, and its current status."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.text = ""
        self.started_s = time.monotonic()

    def say(self, text: str) -> None:
        """Replace the status."""
        self.text = text

    @property
    def elapsed_s(self) -> float:
        """Time since it began."""
        return time.monotonic() - self.started_s


class Screen:
    """Redraws the line of the current act; without a terminal, prints the end of each act."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._alive = out.isatty()
        self._coloured = self._alive and not os.environ.get("NO_COLOR")

    @contextmanager
    def act(self, title: str) -> Iterator[Act]:
        """Show an act while it lasts."""
        act, over = Act(title), threading.Event()
        drawer = threading.Thread(target=self._draw, args=(act, over), daemon=True)
        drawer.start()
        try:
            yield act
        finally:
            over.set()
            drawer.join()
            if self._alive:
                self._write(CLEAR_LINE)
        self._write(self._line(act, DONE, GREEN) + "\n")

    def print(self, text: str = "") -> None:
        """Write lines that stay."""
        self._write(text + "\n")

    def _draw(self, act: Act, over: threading.Event) -> None:
        frame = 0
        while self._alive and not over.wait(REFRESH_S):
            frame += 1
            self._write(CLEAR_LINE + self._line(act, FRAMES[frame % len(FRAMES)], BLUE))

    def _line(self, act: Act, mark: str, colour: str) -> str:
        drawn = f"{colour}{mark}{PLAIN}" if self._coloured else mark
        end = f"{act.elapsed_s:6.1f} s"
        # Keep one column free, so that no terminal wraps the line.
        room = shutil.get_terminal_size().columns - TITLE_WIDTH - len(end) - 6
        return f"{drawn} {act.title:{TITLE_WIDTH}}  {act.text[:room]:{room}} {end}"

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
