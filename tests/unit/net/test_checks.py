"""Slow checks of passwords: few at a time, few in wait, none for who has gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import bcrypt
import pytest
from tests.unit.core.identity.test_auth import SECRET_HASH
from tests.unit.net.streams import Stream, connected, run, until

from penstock.config.accounts import User
from penstock.config.server import Authorization, Limits
from penstock.core.identity.auth import Check
from penstock.net.checks import BUSY
from penstock.net.server import Server

USERS = Authorization(users=(User(name="bea", password=SECRET_HASH),))
OTHER_HASH = bcrypt.hashpw(b"s3cret", bcrypt.gensalt(4)).decode()
CONNECT = b'CONNECT {"verbose":false,"user":"%b","pass":"%b"}\r\nPING\r\n'
PATIENT = Limits(auth_timeout=60.0)
WRONG = b"-ERR 'Authorization Violation'\r\n"
TIMED_OUT = b"-ERR 'Authentication Timeout'\r\n"


class Gate:
    """Lets checks begin, and end when the test says so."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.passwords: list[str] = []

    def run(self, check: Check, run: object = Check.run) -> bool:
        self.passwords.append(check.password)
        assert self.opened.wait(10)
        return bool(run(check))  # type: ignore[operator]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(Check, "run", lambda check: gate.run(check))
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    yield gate
    gate.opened.set()


def test_who_has_gone_is_not_checked(gate: Gate) -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as first, connected(server) as last:
            await first.says(CONNECT % (b"bea", b"first"))
            await until(lambda: gate.passwords)
            async with connected(server) as gone:
                await ask(server, gone, b"gone")
            await ask(server, last, b"s3cret")
            gate.opened.set()

            assert await last.line() == b"PONG\r\n"
        assert gate.passwords == ["first", "s3cret"]

    run(scenario, authorization=USERS, limits=PATIENT)


async def ask(server: Server, client: Stream, password: bytes) -> None:
    """Say CONNECT, and return once it waits for its check."""
    await client.says(CONNECT % (b"bea", password))
    session = server.broker.sessions[client.info["client_id"]]
    await until(lambda: session.check)


def test_beyond_the_bound_clients_are_turned_away(gate: Gate) -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as one, connected(server) as two, connected(server) as three:
            for client in (one, two):
                await ask(server, client, b"s3cret")
            await three.says(CONNECT % (b"bea", b"s3cret"))

            assert await three.line() == b"-ERR '%b'\r\n" % BUSY.encode()
            assert await three.line() == b""
            gate.opened.set()
            assert [await one.line(), await two.line()] == [b"PONG\r\n"] * 2

    run(scenario, authorization=USERS, limits=replace(PATIENT, max_password_checks=1))


def test_who_has_gone_takes_nobody_s_place(gate: Gate) -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as one, connected(server) as last:
            await ask(server, one, b"s3cret")
            for _ in range(5):
                async with connected(server) as gone:
                    await ask(server, gone, b"gone")
            await ask(server, last, b"s3cret")
            gate.opened.set()
            assert [await one.line(), await last.line()] == [b"PONG\r\n"] * 2
        assert "gone" not in gate.passwords

    run(scenario, authorization=USERS, limits=replace(PATIENT, max_password_checks=1))


def test_a_check_takes_no_longer_than_a_client_has_to_authenticate(gate: Gate) -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as one, connected(server) as two:
            for client in (one, two):
                await client.says(CONNECT % (b"bea", b"s3cret"))

            # The one that is being checked, and the one that waits for it.
            assert [await one.line(), await two.line()] == [TIMED_OUT] * 2
            gate.opened.set()

    run(scenario, authorization=USERS, limits=Limits(auth_timeout=0.2))


def test_a_connect_behind_a_connect_is_checked_too(gate: Gate) -> None:
    async def scenario(server: Server) -> None:
        gate.opened.set()
        async with connected(server) as client:
            await client.says(CONNECT % (b"bea", b"s3cret") + CONNECT % (b"bea", b"wrong"))

            assert [await client.line(), await client.line()] == [b"PONG\r\n", WRONG]
        assert gate.passwords == ["s3cret", "wrong"]

    run(scenario, authorization=USERS)


def test_who_was_let_in_before_a_reload_is_not_turned_away_by_it(gate: Gate) -> None:
    async def scenario(server: Server) -> None:
        gate.opened.set()
        async with connected(server) as one, connected(server) as two, connected(server) as three:
            clients = (one, two, three)
            for client in clients:
                await client.says(CONNECT % (b"bea", b"s3cret"))
                assert await client.line() == b"PONG\r\n"
            # Another hash of the same password: everybody is checked again.
            users = (User(name="bea", password=OTHER_HASH), User(name="new", password="x"))
            config = server.config
            server.reload(replace(config, authorization=Authorization(users=users)))

            for client in clients:
                assert await client.settle() == []

    run(scenario, authorization=USERS, limits=replace(PATIENT, max_password_checks=1))
