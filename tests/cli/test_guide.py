"""
The guide is a transcript: what it says a command prints, the command prints.

To write a new one, write down its commands, and let a server fill in the rest:
`python -m tests.cli.test_guide`.
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tests.cli.command import CONFIG, Cli
from tests.servers import PENSTOCK, ServerProcess

from penstock.cli.main import main

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "jetstream.md"
PROMPT = "$ penstock "
VARYING = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-11-15 09:00:00"),
    # How long ago something was; the last column of a list.
    (r"\d+s$", "0s"),
)


def replay(guide: str, url: str) -> Iterator[str]:
    """Yield the guide line by line, with what its commands print now."""
    is_transcript = False
    for line in guide.splitlines():
        if line.startswith("```"):
            is_transcript = line == "```console"
        if line.startswith(PROMPT) and is_transcript:
            yield line
            yield from _run(shlex.split(line.removeprefix(PROMPT)), url)
        elif not is_transcript or line.startswith("```"):
            yield line


def _run(words: list[str], url: str) -> Iterator[str]:
    """Yield what a command prints, on both outputs and in order, as a terminal shows it."""
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(terminal), redirect_stderr(terminal):
        main([*words, "--server", url])
    terminal.seek(0)
    for line in terminal.read().splitlines():
        for pattern, replacement in VARYING:
            line = re.sub(pattern, replacement, line)
        yield line


def test_the_guide_is_what_happens(cli: Cli) -> None:
    guide = GUIDE.read_text(encoding="utf-8")

    assert guide.splitlines() == list(replay(guide, cli.url))


if __name__ == "__main__":
    with ServerProcess(PENSTOCK, CONFIG) as server:
        lines = list(replay(GUIDE.read_text(encoding="utf-8"), server.url))
    GUIDE.write_text("\n".join(lines) + "\n", encoding="utf-8")
