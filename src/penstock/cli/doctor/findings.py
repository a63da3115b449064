"""The findings of an examination: each with its level, and a remedy."""

from __future__ import annotations

from typing import NamedTuple

from penstock.cli.terminal import GREEN, RED, YELLOW, coloured

OK, WARNING, BAD = "ok", "warning", "bad"
COLOURS = {OK: GREEN, WARNING: YELLOW, BAD: RED}
LEVEL_WIDTH, TOPIC_WIDTH = 9, 13


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: str
    topic: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        level = coloured(f"{self.level:{LEVEL_WIDTH}}", COLOURS[self.level])
        line = f"{level}{self.topic:{TOPIC_WIDTH}}{self.text}"
        return f"{line}\n{'':{LEVEL_WIDTH}}{'':{TOPIC_WIDTH}}{self.remedy}" if self.remedy else line
