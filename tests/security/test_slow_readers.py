"""
Readers that are slow, or read nothing, cost nobody anything but those who fill them up.

A server holds a connection back by not reading from it. So no clock is needed: after each
answer to the honest clients it is looked up whether the server has stopped to read from them.
The slow readers stay congested all the while, because what is published to them is more than
they and the kernel take; and a turn lasts longer than the test, so that nobody is let go early.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from tests.unit.net.streams import QUIET, Stream, connected, run, until

from penstock.config.server import Limits
from penstock.net.connection import SHARE_BYTES, Connection
from penstock.net.server import Server

MEGABYTE = 1024 * 1024
ROUNDS = 25
CONGESTED_BYTES = 64 * 1024
ONE_TURN = Limits(congested_bytes=CONGESTED_BYTES, stuck_s=60)
SHORT_TURNS = Limits(congested_bytes=CONGESTED_BYTES, stuck_s=0.05)


@dataclass(frozen=True)
class Case:
    """Slow readers, and what a publisher at full speed sends them."""

    name: str
    readers: int = 1
    portion_bytes: int = 0
    """What each of them reads whenever an honest client has had an answer."""
    interest: bytes = b"busy.>"
    payload_bytes: int = 128
    subjects: int = 1


CASES = (
    Case("reads nothing"),
    Case("reads a little", portion_bytes=64),
    Case("reads steadily", portion_bytes=SHARE_BYTES),
    Case("several read nothing", readers=8),
    Case("several read steadily", readers=4, portion_bytes=SHARE_BYTES),
    Case("reads nothing of everything", interest=b">"),
    Case("reads everything steadily", interest=b">", portion_bytes=SHARE_BYTES),
    Case("large payloads", payload_bytes=256 * 1024, portion_bytes=SHARE_BYTES),
    Case("empty payloads", payload_bytes=0, portion_bytes=SHARE_BYTES),
    Case("many subjects", subjects=1000, portion_bytes=SHARE_BYTES),
)


def connection_of(server: Server, stream: Stream) -> Connection:
    """Return the server's side of a connection."""
    connection = server.broker.sessions[stream.info["client_id"]].transport
    assert isinstance(connection, Connection)
    return connection


def is_congested(server: Server, stream: Stream) -> bool:
    """Tell whether more waits for a reader than its publishers should add to."""
    return connection_of(server, stream).session.outbox_bytes > CONGESTED_BYTES


def flood(case: Case) -> bytes:
    """Return some megabytes of what the publisher sends."""
    payload = bytes(case.payload_bytes)
    line = b"PUB busy.%d %d\r\n%b\r\n"
    messages = b"".join(line % (each, len(payload), payload) for each in range(case.subjects))
    return messages * (8 * MEGABYTE // len(messages))


@asynccontextmanager
async def attack(server: Server, case: Case) -> AsyncIterator[list[Stream]]:
    """Connect slow readers and publish to them, until one of them is congested."""
    async with AsyncExitStack() as stack:
        readers = [
            await stack.enter_async_context(connected(server, receive_buffer=4096))
            for _ in range(case.readers)
        ]
        for reader in readers:
            await reader.says(QUIET + b"SUB %b 1\r\n" % case.interest)
            await reader.settle()
        publisher = await stack.enter_async_context(connected(server))
        publishing = asyncio.create_task(publisher.says(QUIET + flood(case)))
        await until(lambda: any(is_congested(server, each) for each in readers))
        try:
            yield readers
        finally:
            publishing.cancel()
            await asyncio.wait([publishing])


async def ask(asker: Stream, service: Stream) -> None:
    """Make a request, and serve it."""
    await asker.says(b"PUB service inbox 2\r\nhi\r\n")
    assert await service.line() == b"MSG service 1 inbox 2\r\n"
    assert await service.line() == b"hi\r\n"
    await service.says(b"PUB inbox 2\r\nho\r\n")
    assert await asker.line() == b"MSG inbox 1 2\r\n"
    assert await asker.line() == b"ho\r\n"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_who_publishes_little_to_a_slow_reader_is_never_held_back(case: Case) -> None:
    async def scenario(server: Server) -> None:
        async with (
            connected(server) as teller,
            connected(server) as asker,
            connected(server) as service,
        ):
            await teller.says(QUIET)
            await asker.says(QUIET + b"SUB inbox 1\r\n")
            await service.says(QUIET + b"SUB service 1\r\n")
            honest = [teller, asker, service]
            for each in honest:
                await each.settle()
            async with attack(server, case) as readers:
                congested = 0
                for _ in range(ROUNDS):
                    await teller.says(b"PUB busy.0 2\r\nhi\r\n")
                    await teller.settle()
                    await ask(asker, service)
                    assert all(connection_of(server, each).wants_read for each in honest)
                    congested += any(is_congested(server, each) for each in readers)
                    for reader in readers:
                        if case.portion_bytes:
                            await reader.reader.read(case.portion_bytes)

                assert congested

    run(scenario, limits=ONE_TURN)


def test_who_fills_a_slow_reader_up_is_held_back() -> None:
    async def scenario(server: Server) -> None:
        async with attack(server, CASES[0]) as (reader,):
            slow = connection_of(server, reader)
            await until(lambda: slow.waiters)

            assert not slow.waiters[0].wants_read

    run(scenario, limits=ONE_TURN)


def test_who_is_held_back_gets_its_turn_again_though_the_reader_is_still_behind() -> None:
    async def scenario(server: Server) -> None:
        async with attack(server, CASES[0]) as (reader,):
            slow = connection_of(server, reader)
            await until(lambda: slow.waiters)
            (publisher,) = slow.waiters
            stalls = server.reactor.stalled_clients
            while server.reactor.stalled_clients < stalls + 3:
                await reader.reader.read(4096)

            assert is_congested(server, reader)
            assert publisher.session.in_bytes > CONGESTED_BYTES

    run(scenario, limits=SHORT_TURNS)


def test_a_reader_that_no_slower_publisher_could_save_holds_nobody_back() -> None:
    async def scenario(server: Server) -> None:
        async with attack(server, CASES[0]) as (reader,):
            slow = connection_of(server, reader)
            while not slow.session.is_stuck:
                await reader.reader.read(64)
                await asyncio.sleep(0.001)

            assert slow.waiters == []

    run(scenario, limits=SHORT_TURNS)
