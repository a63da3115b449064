"""Bytes between sockets and sessions: partial writes, slow readers, and mistakes of ours."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from tests.unit.net.streams import QUIET, Stream, connected, run, until

from penstock.config.server import Limits
from penstock.net.connection import Connection
from penstock.net.server import Server

SMALL = Limits(congested_bytes=32 * 1024, max_pending=16 * 1024 * 1024, stuck_s=0.05)
KILOBYTE = b"PUB load 1024\r\n" + bytes(1024) + b"\r\n"


def connection_of(server: Server, stream: Stream) -> Connection:
    connection = server.broker.sessions[stream.info["client_id"]].transport
    assert isinstance(connection, Connection)
    return connection


async def subscribed(client: Stream) -> None:
    await client.says(QUIET + b"SUB load 1\r\n")
    assert await client.settle() == []


async def read_messages(client: Stream, count: int) -> None:
    for _ in range(count):
        assert await client.line() == b"MSG load 1 1024\r\n"
        assert await client.reader.readexactly(1026) == bytes(1024) + b"\r\n"


def test_a_reader_that_pauses_holds_its_publisher_up_and_gets_everything() -> None:
    async def scenario(server: Server) -> None:
        count = 8 * 1024
        async with (
            connected(server, receive_buffer=4096) as reader,
            connected(server) as publisher,
        ):
            await subscribed(reader)
            publishing = asyncio.create_task(publisher.says(QUIET + KILOBYTE * count))
            await until(lambda: server.reactor.stalled_clients > 0)
            connection = connection_of(server, publisher)
            await until(lambda: not connection.wants_read)
            await read_messages(reader, count)
            await publishing

            assert await publisher.settle() == []
            assert connection.wants_read
            assert server.broker.slow_consumers == 0
            assert connection_of(server, reader).waiters == []

    run(scenario, limits=SMALL)


def test_a_reader_that_is_stuck_holds_its_publisher_up_only_for_a_while() -> None:
    async def scenario(server: Server) -> None:
        count = 8 * 1024
        async with (
            connected(server, receive_buffer=4096) as stuck,
            connected(server) as publisher,
        ):
            await subscribed(stuck)
            await publisher.says(QUIET + KILOBYTE * count)

            assert await publisher.settle() == []
            session = connection_of(server, stuck).session
            assert session.is_stuck
            await read_messages(stuck, count)
            assert not session.is_stuck

    run(scenario, limits=SMALL)


def test_a_reader_that_is_stuck_is_cut_off_at_max_pending(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(server: Server) -> None:
        async with (
            connected(server, receive_buffer=4096) as stuck,
            connected(server) as publisher,
        ):
            await subscribed(stuck)
            await publisher.says(QUIET + KILOBYTE * 24 * 1024)

            assert await publisher.settle() == []
            assert server.broker.slow_consumers == 1
            assert server.broker.closed[0].reason == "Slow Consumer (Pending Bytes)"

    with caplog.at_level(logging.INFO, logger="penstock"):
        run(scenario, limits=SMALL)

    assert "Slow Consumer (Pending Bytes)" in caplog.text


def test_a_client_that_floods_itself_is_cut_off_and_nobody_else() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server, receive_buffer=4096) as flooder, connected(server) as other:
            await subscribed(flooder)
            flooding = asyncio.create_task(flooder.says(KILOBYTE * 32 * 1024))
            await until(lambda: server.broker.slow_consumers == 1)
            flooding.cancel()

            assert await other.settle() == []

    run(scenario, limits=SMALL)


def test_a_write_that_does_not_move_ends_at_the_deadline() -> None:
    limits = Limits(write_deadline=0.2, congested_bytes=64 * 1024 * 1024)

    async def scenario(server: Server) -> None:
        async with (
            connected(server, receive_buffer=4096) as stuck,
            connected(server) as publisher,
        ):
            await subscribed(stuck)
            await publisher.says(QUIET + KILOBYTE * 8 * 1024)
            await until(lambda: server.broker.slow_consumers == 1)

            assert server.broker.closed[0].reason == "Slow Consumer (Write Deadline)"

    run(scenario, limits=limits)


def test_a_reader_too_slow_for_its_publishers_is_cut_off_though_it_moves() -> None:
    limits = Limits(
        write_deadline=0.3, congested_bytes=4 * 1024 * 1024, stuck_s=0.05, max_pending=2**30
    )

    async def publish(publisher: Stream) -> None:
        await publisher.says(QUIET)
        while True:
            await publisher.says(KILOBYTE * 1024)

    async def scenario(server: Server) -> None:
        async with (
            connected(server, receive_buffer=4096) as slow,
            connected(server) as publisher,
        ):
            await subscribed(slow)
            publishing = asyncio.create_task(publish(publisher))
            while not server.broker.slow_consumers:
                await slow.reader.read(16 * 1024)
                await asyncio.sleep(0.005)
            publishing.cancel()

            assert server.broker.closed[0].reason == "Slow Consumer (Write Deadline)"

    run(scenario, limits=limits)


def test_a_slow_reader_gets_its_error_before_it_is_closed() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server, receive_buffer=4096) as slow:
            await subscribed(slow)
            await slow.says(KILOBYTE * 4096 + b"NONSENSE\r\n")
            await read_messages(slow, 4096)

            assert await slow.line() == b"-ERR 'Unknown Protocol Operation'\r\n"
            assert await slow.line() == b""

    run(scenario)


@pytest.mark.parametrize(("linger", "reason"), [(False, "Client Closed"), (True, "Read Error")])
def test_a_client_that_leaves_is_noted_with_its_reason(linger: bool, reason: str) -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            if linger:
                sock = client.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await until(lambda: not server.broker.sessions)

        assert [record.reason for record in server.broker.closed] == [reason]

    run(scenario)


def test_a_client_that_is_gone_when_it_is_written_to_is_closed() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            connection = connection_of(server, client)
            connection.sock.shutdown(socket.SHUT_WR)
            connection.session.write(b"PING\r\n")
            server.reactor.flush()

            assert connection.is_closed
            assert server.broker.closed[0].reason == "Write Error"
            connection.close("again")
            assert len(server.broker.closed) == 1

    run(scenario)


def test_a_mistake_of_ours_costs_nobody_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    def stumble(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    async def scenario(server: Server) -> None:
        heard: list[object] = []
        server.broker.default_account.listen(b"trap", stumble)
        server.broker.default_account.listen(b"*", lambda *_: heard.append(_))
        async with connected(server) as victim, connected(server) as other:
            await victim.says(QUIET + b"PUB trap 0\r\n\r\n")

            assert await victim.settle() == []
            assert await other.settle() == []
        assert len(heard) == 1

    run(scenario)

    assert "a message to `trap` failed" in caplog.text
    assert "a mistake of ours" in caplog.text


def test_a_silent_client_is_pinged_until_it_is_stale() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            assert await client.line() == b"PING\r\n"
            await client.says(b"PONG\r\n")
            assert await client.line() == b"PING\r\n"
            assert await client.line() == b"PING\r\n"
            assert await client.line() == b"-ERR 'Stale Connection'\r\n"
            assert await client.line() == b""

    run(scenario, limits=Limits(ping_interval=0.02, ping_max=2))


def test_what_was_for_a_client_that_is_gone_is_dropped() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client, connected(server) as other:
            await subscribed(client)
            connection = connection_of(server, client)
            session = connection.session
            session.write(b"never read\r\n")
            connection.close("for a test")
            session.write(b"never sent\r\n")
            connection.flush()
            server.reactor.flush()

            assert session.outbox == []
            assert await other.settle() == []

    run(scenario)
