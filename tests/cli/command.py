"""The command line as a test uses it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.cli.main import main
from penstock.client import JetStream, connect

CONFIG = '# The command line\njetstream { store_dir: "js" }'
PENSTOCK = str(Path(sys.executable).parent / "penstock")


class Result(NamedTuple):
    """What a command printed."""

    out: str
    err: str


class Cli:
    """The command in this process, on one server."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> Result:
        """Run a command and check its exit code."""
        self._capsys.readouterr()
        actual = main([*words, "--server", self.url])
        result = Result(*self._capsys.readouterr())
        assert code == actual, result
        return result

    def json(self, *words: str) -> Any:
        """Run a command and return its document."""
        return json.loads(self(*words, "--json").out)

    def lines(self, *words: str) -> list[Any]:
        """Run a command and return its documents, one a line."""
        return [json.loads(line) for line in self(*words, "--json").out.splitlines()]

    def fails(self, *words: str, code: int = 1) -> str:
        """Run a command that cannot do what it was asked, and return what it says."""
        result = self(*words, code=code)
        assert "" == result.out
        return result.err

    def run(self, work: Callable[[JetStream], Awaitable[Any]]) -> Any:
        """Run a coroutine on a connection of its own."""

        async def connected() -> Any:
            async with await connect(self.url) as client:
                return await work(client.jetstream())

        return asyncio.run(connected())

    def publish(self, *messages: tuple[str, bytes]) -> None:
        """Store messages."""
        self.run(lambda js: js.publish_batch(messages))

    def start(self, *words: str, **settings: Any) -> subprocess.Popen[str]:
        """Start a command as a process."""
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
        return subprocess.Popen(
            [PENSTOCK, *words, "--server", self.url],
            stdin=settings.pop("stdin", subprocess.DEVNULL),
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            **settings,
        )
