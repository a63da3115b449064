"""One tick for all connections, and what happens outside of it."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading

import bcrypt
import pytest
from tests.unit.net.streams import QUIET, connected, run, until

from penstock.config.accounts import User
from penstock.config.server import Authorization
from penstock.core.identity.auth import Check, Verified
from penstock.net import reactor as reactor_module
from penstock.net.poller import READ
from penstock.net.server import Server

HASH = bcrypt.hashpw(b"s3cret", bcrypt.gensalt(4)).decode()
BEA = Authorization(users=(User(name="bea", password=HASH),))
CONNECT = b'CONNECT {"verbose":false,"user":"bea","pass":"%b"}\r\n'


def test_what_is_owed_outside_of_a_tick_is_written_by_a_flush() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            await client.says(QUIET + b"SUB a 1\r\n")
            await client.settle()
            server.broker.default_account.send(b"a", b"hi")
            server.reactor.flush()

            assert await client.line() == b"MSG a 1 2\r\n"

    run(scenario)


def test_what_comes_up_before_a_flush_goes_out_with_it() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            await client.says(QUIET + b"SUB a 1\r\n")
            await client.settle()
            account = server.broker.default_account
            server.reactor.before_flush = lambda: account.send(b"a", b"first")
            server.reactor.flush()
            server.reactor.before_flush = None

            assert await client.line() == b"MSG a 1 5\r\n"

    run(scenario)


@pytest.mark.parametrize(
    ("password", "expected"),
    [(b"s3cret", [b"PONG\r\n"]), (b"wrong", [b"-ERR 'Authorization Violation'\r\n", b""])],
)
def test_a_slow_password_is_checked_on_a_thread(password: bytes, expected: list[bytes]) -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            await client.says(CONNECT % password + b"PING\r\n")

            assert expected == [await client.line() for _ in expected]

    run(scenario, authorization=BEA)


class Gate(Check):
    """A check that takes as long as the test wants."""

    __slots__ = ("opened", "started")

    def __init__(self, check: Check) -> None:
        super().__init__(check.identity, check.hashed, check.password, Verified())
        self.started, self.opened = threading.Event(), threading.Event()

    def run(self) -> bool:
        self.started.set()
        assert self.opened.wait(10)
        return True


def test_others_are_served_while_a_password_is_checked() -> None:
    async def scenario(server: Server) -> None:
        authenticator = server.broker.authenticator
        check = authenticator.identify({"user": "bea", "pass": "s3cret"})
        assert isinstance(check, Check)
        check.verdict(True)
        async with connected(server) as slow, connected(server) as other:
            gate = Gate(check)
            session = server.broker.sessions[slow.info["client_id"]]
            session.check = gate
            server.reactor.watch(session.transport)
            server.reactor.checks.start(session)
            await until(gate.started.is_set)
            await slow.says(b"PING\r\n")
            await other.says(CONNECT % b"s3cret")

            assert await other.settle() == []
            assert not session.transport.wants_read
            gate.opened.set()
            assert await slow.line() == b"+OK\r\n"
            assert await slow.line() == b"PONG\r\n"

    run(scenario, authorization=BEA)


def test_a_check_that_ends_after_its_connection_changes_nothing() -> None:
    async def scenario(server: Server) -> None:
        check = server.broker.authenticator.identify({"user": "bea", "pass": "s3cret"})
        assert isinstance(check, Check)
        async with connected(server) as client:
            gate = Gate(check)
            session = server.broker.sessions[client.info["client_id"]]
            connection = session.transport
            session.check = gate
            server.reactor.checks.start(session)
            connection.close("for a test")
            gate.opened.set()
            await until(gate.started.is_set)
            await asyncio.sleep(0)

        assert session.identity is None

    run(scenario, authorization=BEA)


class FullListener:
    """A listening socket in a system that has no descriptors left, for a while."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.is_full = True

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_full:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()

    def close(self) -> None:
        self._listener.close()


def test_accepting_pauses_while_the_system_has_no_descriptors_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reactor_module, "ACCEPT_PAUSE_S", 0.02)

    async def scenario(server: Server) -> None:
        reactor = server.reactor
        ((fd, (listener, accept)),) = reactor._listeners.items()
        full = FullListener(listener)
        reactor._listeners[fd] = (full, accept)
        client = asyncio.create_task(asyncio.open_connection("127.0.0.1", server.port))
        await until(lambda: caplog.text.count("Too many open files") >= 2)
        full.is_full = False
        reader, writer = await client

        assert (await reader.readline()).startswith(b"INFO ")
        writer.close()
        await writer.wait_closed()

    run(scenario)


def test_accepting_does_not_resume_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(server: Server) -> None:
        ((fd, _),) = server.reactor._listeners.items()
        server.reactor.stop_listening()

        server.reactor._resume_accepting(fd)
        server.reactor.tick([(fd, 1)])

        assert server.reactor._listeners == {}

    run(scenario)


class Broken:
    """A served socket with a mistake in it."""

    wants_read = True
    is_blocked = is_closed = False
    session = None

    def __init__(self, sock: socket.socket) -> None:
        self.fd = sock.fileno()
        self.reason = ""

    def on_readable(self) -> None:
        raise ZeroDivisionError

    def on_writable(self) -> None:
        raise AssertionError("nobody waits for that")

    def close(self, reason: str) -> None:
        self.is_closed, self.reason = True, reason


def test_a_mistake_costs_the_connection_it_is_made_for_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(server: Server) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            broken = Broken(ours)
            server.reactor.serve(broken)
            async with connected(server) as client:
                await client.says(QUIET)
                connection = server.broker.sessions[client.info["client_id"]].transport
                await client.says(b"PING\r\n")
                server.reactor.tick([(broken.fd, READ), (connection.fd, READ)])

                assert await client.line() == b"PONG\r\n"
            assert broken.reason == "Internal Error"
            server.reactor.forget(broken)

    run(scenario)
    assert "internal error" in caplog.text


def test_congestion_that_no_publisher_caused_slows_nobody() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as slow, connected(server) as innocent:
            session = server.broker.sessions[slow.info["client_id"]]
            server.broker.congested.append(session)
            server.reactor.flush()

            assert server.broker.congested == []
            assert await innocent.settle() == []
            assert server.reactor.stalled_clients == 0

    run(scenario)


def test_congestion_of_a_session_that_is_gone_slows_nobody() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as gone, connected(server) as publisher:
            session = server.broker.sessions[gone.info["client_id"]]
            session.transport.close("for a test")
            server.broker.congested.append(session)

            assert await publisher.settle() == []
            assert server.reactor.stalled_clients == 0

    run(scenario)
