"""A TCP proxy that cuts and stalls connections: what networks do, on demand."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from tests.servers import HOST


class ChaosProxy:
    """Forwards to one server. `cut` breaks every connection, `stall` lets nothing through."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self.accepted = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        self._flowing.set()
        self.cut()
        while self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def cut(self) -> None:
        """Break every connection that is open, with a reset."""
        for writer in self._writers:
            writer.transport.abort()

    def refuse(self, refusing: bool) -> None:
        """Break every new connection too, until told otherwise."""
        self._refusing = refusing
        if refusing:
            self.cut()

    def stall(self) -> None:
        """Keep the connections, but let nothing through."""
        self._flowing.clear()

    def resume(self) -> None:
        """Let everything through again."""
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forward(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self.accepted += 1
        upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._target)
        writers = {writer, upstream_writer}
        self._writers |= writers
        await asyncio.gather(
            self._pump(reader, upstream_writer),
            self._pump(upstream_reader, writer),
        )
        self._writers -= writers

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
