"""Colour and progress: on a terminal, and nowhere else."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from penstock.cli.terminal import BOLD, Progress, coloured, table

BEGIN_BOLD = "\x1b[1m"


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Let this test write to a terminal."""
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_a_table_has_a_bold_header_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)

    assert table(("NAME", "SIZE"), [("a", "1")]) == f"{BEGIN_BOLD}NAME  SIZE\x1b[0m\na        1"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colour_gets_none(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch)
    monkeypatch.setenv(name, value)

    assert coloured("text", BOLD) == "text"


def test_a_pipe_gets_no_colour_and_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("saving", 10)
    progress.show(5)
    progress.clear()

    assert capsys.readouterr() == ("", "")
    assert table(("NAME",), [("a",)]) == "NAME\na"


def test_progress_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    out = terminal(monkeypatch)
    progress = Progress("saving ORDERS", 4096)
    progress.show(1024)
    progress.show(2048)
    progress.clear()

    assert out.getvalue() == "\r\x1b[2Ksaving ORDERS  25%  1 KiB\r\x1b[2K"


@pytest.mark.parametrize(("environment", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_an_error_is_coloured_on_a_terminal(environment: dict[str, str], is_coloured: bool) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "penstock", "stream", "lss"]
    settings = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    done = subprocess.run(
        command, stderr=slave, check=False, env={**settings, "TERM": "xterm", **environment}
    )
    os.close(slave)
    error = os.read(master, 65536).decode()
    os.close(master)

    assert done.returncode == 2
    assert ("\x1b[31mpenstock:\x1b[0m unknown verb `lss`" in error) is is_coloured
    assert ("\x1b[36mhint: \x1b[0mdid you mean `ls`?" in error) is is_coloured
