"""
The guides are transcripts: what they say a command prints, the command prints.

To write a new one, write down its commands, and let a server fill in the rest:
`python -m tests.cli.test_guide docs/guides/jetstream.md`.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from tests.cli.command import CONFIG, Cli
from tests.servers import PENSTOCK, ServerProcess

from penstock.cli.arguments import find_verb
from penstock.cli.commands import path_of, verbs_of
from penstock.cli.main import main

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PROMPT, SILENT = "$ penstock ", " > /dev/null"
VARYING = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "2026-11-15 09:00:00"),
    # How long ago something was; the last column of a list.
    (r"\d+s$", "0s"),
    # Figures of this machine, and of this moment.
    (r"nats://127\.0\.0\.1:\d+", "nats://127.0.0.1:4222"),
    (r"`/.*/nats/context/", "`~/.config/nats/context/"),
    (r"messages, [\d.]+ (KiB|B) in", "messages, 700 B in"),
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
    is_silent = words[-2:] == SILENT.split()
    words = words[:-2] if is_silent else words
    with redirect_stdout(terminal), redirect_stderr(terminal):
        main([*words, "--server", url] if _takes_server(words) else words)
    terminal.seek(0)
    for line in [] if is_silent else terminal.read().splitlines():
        for pattern, replacement in VARYING:
            line = re.sub(pattern, replacement, line)
        yield line


def _takes_server(words: list[str]) -> bool:
    verbs = verbs_of(words[0])
    verb = verbs[0] if path_of(words[0], verbs[0]) == words[0] else None
    return "--server" in (verb or find_verb(words[0], verbs, words[1])).option_names


@pytest.mark.parametrize("name", ["jetstream.md", "command-line.md"])
def test_a_guide_is_what_happens(
    name: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    guide = (GUIDES / name).read_text(encoding="utf-8")

    assert guide.splitlines() == list(replay(guide, cli.url))


if __name__ == "__main__":
    page = Path(sys.argv[1]).absolute()
    with ServerProcess(PENSTOCK, CONFIG) as server, tempfile.TemporaryDirectory() as home:
        os.chdir(home)
        os.environ["XDG_CONFIG_HOME"] = home
        lines = list(replay(page.read_text(encoding="utf-8"), server.url))
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
