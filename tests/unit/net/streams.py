"""Clients of a server in the same process and on the same event loop."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.net.server import Server

DEADLINE_S = 10.0
QUIET = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'


class Stream:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.info: dict[str, Any] = {}

    async def says(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def line(self) -> bytes:
        """Return the next line; b"" is the end."""
        return await self.reader.readline()

    async def settle(self) -> list[bytes]:
        """Return the lines that come before the answer to a PING."""
        await self.says(b"PING\r\n")
        lines = []
        while (line := await self.line()) != b"PONG\r\n":
            assert line, "the server has closed the connection"
            lines.append(line)
        return lines


@asynccontextmanager
async def connected(server: Server, *, receive_buffer: int = 0) -> AsyncIterator[Stream]:
    """Connect, and read the INFO."""
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    stream = Stream(reader, writer)
    stream.info = json.loads((await stream.line()).removeprefix(b"INFO "))
    try:
        yield stream
    finally:
        writer.transport.abort()
        try:
            await writer.wait_closed()
        except OSError:
            """The server had closed it before."""


async def until(condition: Callable[[], Any]) -> None:
    """Return once the condition is true."""
    while not condition():  # noqa: ASYNC110 - there is no event for most of what is waited for
        await asyncio.sleep(0.002)


def run(scenario: Callable[..., Awaitable[None]], **settings: Any) -> None:
    """Run a scenario with a server, within a deadline."""

    async def bounded() -> None:
        async with Server(**settings) as server:
            await asyncio.wait_for(scenario(server), DEADLINE_S)

    asyncio.run(bounded())
