"""The command line against the real server and ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.command import CONFIG, Cli
from tests.conftest import Servers
from tests.servers import Program

from penstock.client import JetStream


@pytest.fixture
def cli(program: Program, servers: Servers, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Return the command on a server; the streams that a test leaves are deleted."""
    cli = Cli(servers(program, CONFIG).url, capsys)
    yield cli
    cli.run(_delete_all)


async def _delete_all(js: JetStream) -> None:
    for name in await js.streams.names():
        await js.streams.delete(name)
