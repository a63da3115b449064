"""When bytes leave, and when a publisher waits. The transport is the only thing made up."""

from __future__ import annotations

import asyncio

import pytest
from tests.aio import asynchronous

from penstock.client.connection.link import Link
from penstock.client.connection.outbox import LinkOutbox
from penstock.errors import ConnectionClosed, OutboxFull

PIECE = b"PUB a 0\r\n\r\n"


class Recorder(asyncio.Transport):
    """A transport that remembers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Every write is taken."""


def attached(outbox: LinkOutbox) -> tuple[Link, Recorder]:
    link, transport = Link(), Recorder()
    link.connection_made(transport)
    outbox.attach(link)
    return link, transport


@asynchronous
async def test_all_that_one_turn_of_the_loop_adds_is_one_write() -> None:
    outbox = LinkOutbox(flush_bytes=1000, pending_bytes_max=10_000)
    _, transport = attached(outbox)
    for _ in range(50):
        outbox.add(PIECE)
    assert [] == transport.writes
    await asyncio.sleep(0)
    outbox.add(PIECE)
    await asyncio.sleep(0)

    assert [PIECE * 50, PIECE] == transport.writes


@asynchronous
async def test_a_publisher_that_never_pauses_is_made_to() -> None:
    outbox = LinkOutbox(flush_bytes=100, pending_bytes_max=10_000)
    _, transport = attached(outbox)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while turns < 10:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.ensure_future(count())
    while turns < 10:
        outbox.add(PIECE)
        if outbox.pending_bytes >= outbox.limit_bytes:
            await outbox.make_room()
    await counter

    assert {PIECE * 10} == set(transport.writes)


@asynchronous
async def test_while_the_link_takes_nothing_all_is_collected_up_to_the_bound() -> None:
    outbox = LinkOutbox(flush_bytes=20, pending_bytes_max=110)
    link, transport = attached(outbox)
    link.pause_writing()
    for _ in range(10):
        outbox.check_room()
        outbox.add(PIECE)
    with pytest.raises(OutboxFull, match="110 bytes"):
        outbox.check_room()
    waiting = asyncio.ensure_future(outbox.make_room())
    await asyncio.sleep(0)
    assert ([], False) == (transport.writes, waiting.done())
    link.resume_writing()
    await waiting

    assert [PIECE * 10] == transport.writes


@asynchronous
async def test_only_publishes_outlive_a_link() -> None:
    outbox = LinkOutbox(flush_bytes=1000, pending_bytes_max=10_000)
    attached(outbox)
    for piece in (b"SUB a 1\r\n", PIECE, b"PING\r\n", b"HPUB a 12 12\r\nx\r\n", b"UNSUB 1 5\r\n"):
        outbox.add(piece)
    outbox.detach()
    _, transport = attached(outbox)

    assert [PIECE + b"HPUB a 12 12\r\nx\r\n"] == transport.writes


@asynchronous
async def test_publishes_are_taken_back_by_where_their_replies_go() -> None:
    outbox = LinkOutbox(flush_bytes=1000, pending_bytes_max=10_000)
    for piece in (PIECE, b"PUB a _INBOX.me.1 1\r\nx\r\n", b"PUB a _INBOX.you.1 1\r\nx\r\n"):
        outbox.add(piece)
    outbox.withdraw(b"_INBOX.me.")
    _, transport = attached(outbox)

    assert [PIECE + b"PUB a _INBOX.you.1 1\r\nx\r\n"] == transport.writes


@asynchronous
async def test_those_who_wait_are_told_of_the_end() -> None:
    outbox = LinkOutbox(flush_bytes=5, pending_bytes_max=10)
    outbox.add(PIECE)
    waiting = asyncio.ensure_future(outbox.make_room())
    await asyncio.sleep(0)
    outbox.discard(ConnectionClosed("the end"))

    with pytest.raises(ConnectionClosed, match="the end"):
        await waiting


@asynchronous
async def test_a_server_that_pings_and_reads_nothing_gets_one_answer_for_all() -> None:
    outbox = LinkOutbox(flush_bytes=1000, pending_bytes_max=10_000)
    link, transport = attached(outbox)
    link.pause_writing()
    for _ in range(100_000):
        outbox.pong()
    assert len(b"PONG\r\n") == outbox.pending_bytes
    link.resume_writing()

    assert [b"PONG\r\n"] == transport.writes


@asynchronous
async def test_a_server_that_reads_gets_an_answer_to_each_ping() -> None:
    outbox = LinkOutbox(flush_bytes=1000, pending_bytes_max=10_000)
    _, transport = attached(outbox)
    outbox.pong()
    outbox.pong()
    outbox.flush()

    assert [b"PONG\r\n" * 2] == transport.writes
