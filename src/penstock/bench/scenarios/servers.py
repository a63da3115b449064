"""The servers to measure: those that the bench starts itself, and any with a URL."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from penstock.client import connect
from penstock.errors import ConfigError
from penstock.net.process import PENSTOCK, Program, ServerProcess
from penstock.protocol.redaction import redact
from penstock.protocol.suggestions import nearest


@dataclass(frozen=True)
class Choice(Program):
    """A server that the bench can start."""

    doc: str = ""
    jetstream: str = ""
    """Further settings of the `jetstream` block."""


PROGRAMS = {
    program.name: program
    for program in (
        Choice("penstock", PENSTOCK.command, doc="this Penstock"),
        Choice(
            "penstock-pure",
            PENSTOCK.command,
            {"PENSTOCK_PURE": "1"},
            doc="this Penstock without its compiled hot path",
        ),
        Choice(
            "nats",
            ("nats-server",),
            doc="nats-server, found beside this Python or on the PATH",
        ),
        Choice(
            "nats-sync",
            ("nats-server",),
            doc="nats-server configured to sync every message before its ack, as Penstock does",
            jetstream="sync_interval: always",
        ),
    )
}


def parse(text: str) -> list[str]:
    """Return the servers of a comma-separated list; raise for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PROGRAMS and "://" not in name:
            meant = nearest(name, PROGRAMS)
            hint = f"did you mean `{meant}`?" if meant else f"{', '.join(PROGRAMS)} or a URL"
            raise ConfigError(f"there is no server `{name}`; hint: {hint}")
    return names


def open_server(
    name: str, *, jetstream: bool
) -> AbstractContextManager[ServerProcess | RemoteServer]:
    """Return the server with this name: started for a `with` block, or remote."""
    if "://" in name:
        return RemoteServer(name)
    return started(name, jetstream=jetstream)


def started(name: str, *, jetstream: bool) -> ServerProcess:
    """Return one of `PROGRAMS`, to be started by a `with` block."""
    program = PROGRAMS[name]
    config = f"jetstream {{\nstore_dir: jetstream\n{program.jetstream}\n}}\n" if jetstream else ""
    return ServerProcess(program, config, own_session=True)


class RemoteServer:
    """A server that somebody else runs."""

    resident_bytes: int | None = None
    """Unknown: its process is not ours."""

    def __init__(self, url: str) -> None:
        self.name = redact(url)
        self.url = url
        self.version = ""

    def __enter__(self) -> Self:
        self.version = asyncio.run(_version(self.url))
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the server as it is."""


async def _version(url: str) -> str:
    """Return the version that a server announces to clients."""
    async with await connect(url) as client:
        if client.info.get("go", "").startswith("python"):
            return f"penstock, speaks NATS {client.info['version']}"
        return f"nats-server {client.info['version']}"
