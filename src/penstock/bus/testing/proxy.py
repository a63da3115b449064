"""
A proxy between a bus and its server that breaks things on demand.

It stands on the wire, so the programs on both sides are the real ones. Faults on
messages name a subject and a direction: what clients publish goes "up", acks of
handlers (`$JS.ACK.>`) too; deliveries and the server's own acks (`_INBOX.>`) come "down".

    async with FaultProxy(server.url) as proxy, EventBus.open(proxy.url) as bus:
        proxy.drop("_INBOX.>", direction="down", count=1)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from penstock.bus.testing.frames import ProxiedFrame, split
from penstock.protocol import subjects

HOST = "127.0.0.1"
READ_BYTES = 65_536

Direction = Literal["up", "down"]


@dataclass
class Fault:
    """Something that happens to messages of a subject."""

    kind: Literal["drop", "delay", "duplicate"]
    pattern: str
    direction: Direction
    count: int | None
    """How many more messages it happens to; None is all."""
    seconds: float = 0.0
    hits: int = 0
    """How many it has happened to."""

    def strikes(self, frame: ProxiedFrame, direction: Direction) -> bool:
        """Tell whether it happens to this message, and count it."""
        if not frame.subject or self.count == 0 or direction != self.direction:
            return False
        if not subjects.matches(self.pattern.encode(), frame.subject.encode()):
            return False
        self.hits += 1
        if self.count is not None:
            self.count -= 1
        return True


class FaultProxy:
    """Forwards connections to one server. Use with `async with`."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or HOST, address.port or 4222
        self._faults: list[Fault] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_refusing = False
        self.url = ""
        """Where clients connect to."""
        self.accepted = 0
        """Connections so far."""

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.url = f"nats://{HOST}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._flows.set()
        self.refuse()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def drop(self, pattern: str, *, direction: Direction = "up", count: int | None = 1) -> Fault:
        """Lose messages."""
        return self._add(Fault("drop", pattern, direction, count))

    def duplicate(
        self, pattern: str, *, direction: Direction = "up", count: int | None = 1
    ) -> Fault:
        """Pass messages on twice."""
        return self._add(Fault("duplicate", pattern, direction, count))

    def delay(
        self,
        pattern: str,
        seconds: float,
        *,
        direction: Direction = "up",
        count: int | None = 1,
    ) -> Fault:
        """Hold messages, and all that follow on the same connection, for a while."""
        return self._add(Fault("delay", pattern, direction, count, seconds))

    def heal(self) -> None:
        """Do no more harm: forget every fault, let everything through."""
        self._faults.clear()
        self._is_refusing = False
        self._flows.set()

    def cut(self) -> None:
        """Break every connection with a reset. Clients may come back at once."""
        for writer in self._writers:
            writer.transport.abort()

    def refuse(self) -> None:
        """Break every connection, and each new one until `heal`."""
        self._is_refusing = True
        self.cut()

    def stall(self) -> None:
        """Keep connections open and let nothing through, until `heal`."""
        self._flows.clear()

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine: asyncio would make a task of it, which nobody knew at the end.
        if self._is_refusing:
            writer.transport.abort()
            return
        self.accepted += 1
        task = asyncio.get_running_loop().create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        writers = {writer, upstream_writer}
        self._writers |= writers
        await asyncio.gather(
            self._pump(reader, upstream_writer, "up"),
            self._pump(upstream_reader, writer, "down"),
        )
        self._writers -= writers

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        rest = b""
        try:
            while data := await reader.read(READ_BYTES):
                frames, rest = split(rest + data)
                for frame in frames:
                    await self._pass_on(frame, writer, direction)
                await writer.drain()
        except OSError:
            pass  # the other side has gone, and so shall this one
        finally:
            writer.transport.abort()

    async def _pass_on(
        self, frame: ProxiedFrame, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        await self._flows.wait()
        struck = [fault for fault in self._faults if fault.strikes(frame, direction)]
        for fault in struck:
            if fault.kind == "delay":
                await asyncio.sleep(fault.seconds)
        kinds = {fault.kind for fault in struck}
        if "drop" not in kinds:
            writer.write(frame.data * (2 if "duplicate" in kinds else 1))
