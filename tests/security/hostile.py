"""A server that says whatever a test has it say."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from tests.servers import HOST

INFO = {"server_id": "hostile", "version": "2.10.0", "max_payload": 1 << 20, "headers": True}
PUBLISH = re.compile(rb"(H?)PUB (\S+) (?:(\S+) )?(?:\d+ )?(\d+)\r\n")


@dataclass
class Publish:
    """What a client published."""

    subject: str
    reply: str
    data: bytes


class Peer:
    """One client at the hostile server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sids: dict[str, str] = {}

    async def welcome(self, **fields: Any) -> None:
        """Greet as a server should, up to the first PONG."""
        self.say(b"INFO %b\r\n" % json.dumps(INFO | fields).encode())
        while await self.line() != b"PING\r\n":
            pass
        self.say(b"PONG\r\n")

    def say(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def line(self) -> bytes:
        """Return the next line."""
        return await self.reader.readuntil(b"\r\n")

    async def publishes(self) -> AsyncIterator[Publish]:
        """Answer pings, note subscriptions, and yield what is published."""
        while True:
            line = await self.line()
            if line == b"PING\r\n":
                self.say(b"PONG\r\n")
            elif line.startswith(b"SUB "):
                words = line.decode().split()
                self.sids[words[1]] = words[-1]
            elif found := PUBLISH.match(line):
                data = await self.reader.readexactly(int(found[4]) + 2)
                yield Publish(found[2].decode(), (found[3] or b"").decode(), data[:-2])

    async def spoken_to(self) -> None:
        """Return once the client has published something: it is past its handshake."""
        await anext(self.publishes())

    async def listen(self) -> None:
        """Answer pings until the client is gone."""
        async for _ in self.publishes():
            pass

    def deliver(
        self, subject: str, payload: bytes, *, reply: str = "", headers: bytes = b""
    ) -> None:
        """Send a message to the subscription that a subject is for."""
        sid = next(sid for pattern, sid in self.sids.items() if _matches(pattern, subject))
        words = " ".join(filter(None, [subject, sid, reply]))
        size = len(headers) + len(payload)
        line = f"HMSG {words} {len(headers)} {size}" if headers else f"MSG {words} {size}"
        self.say(line.encode() + b"\r\n" + headers + payload + b"\r\n")


class HostileServer:
    """Serves each client with a script, inside an `async with` block."""

    def __init__(self, script: Callable[[Peer], Awaitable[None]]) -> None:
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()
        self.accepted = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, HOST, 0, limit=1 << 22)
        self.url = f"nats://{HOST}:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._tasks.add(asyncio.create_task(self._serve(Peer(reader, writer))))

    async def _serve(self, peer: Peer) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._script(peer)
                await peer.writer.drain()
        finally:
            peer.writer.transport.abort()
            with suppress(OSError):
                await peer.writer.wait_closed()


def _matches(pattern: str, subject: str) -> bool:
    return pattern == subject or (
        pattern.endswith(".*") and subject.rpartition(".")[0] == pattern[:-2]
    )
