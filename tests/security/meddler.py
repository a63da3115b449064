"""A man in the middle: a proxy that changes the first words of a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from tests.servers import HOST

Change = Callable[[bytes], bytes]


def untouched(greeting: bytes) -> bytes:
    """Pass a greeting on."""
    return greeting


def followed_by(text: bytes) -> Change:
    """Return a change that adds clear text behind the INFO, in the same segment."""
    return lambda greeting: greeting + text


def with_fields(**fields: Any) -> Change:
    """Return a change that sets fields of the INFO."""

    def change(greeting: bytes) -> bytes:
        info = json.loads(greeting.removeprefix(b"INFO ")) | fields
        return b"INFO %b\r\n" % json.dumps(info).encode()

    return change


class Meddler:
    """Stands in front of a server, inside an `async with` block."""

    def __init__(self, port: int, change: Change = untouched) -> None:
        self._server_port = port
        self.change = change
        self.port = 0
        self.accepted = 0
        self.overheard = bytearray()
        """All that clients have said."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()
        await asyncio.gather(*self._tasks)

    def cut(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(HOST, self._server_port)
        pair = {writer, server_writer}
        self._writers |= pair
        with suppress(OSError, asyncio.IncompleteReadError):
            writer.write(self.change(await server_reader.readuntil(b"\r\n")))
            await asyncio.gather(
                self._pass(reader, server_writer, self.overheard),
                self._pass(server_reader, writer, bytearray()),
            )
        for each in pair:
            each.transport.abort()
            with suppress(OSError):
                await each.wait_closed()
        self._writers -= pair

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, overheard: bytearray
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                overheard += data
                writer.write(data)
                await writer.drain()
        writer.close()
