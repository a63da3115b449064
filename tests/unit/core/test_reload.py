"""A new configuration while clients are connected: who may stay, stays."""

import asyncio
from dataclasses import replace

import pytest

from penstock.config.accounts import Permissions, SubjectRules, User
from penstock.config.server import Authorization, Limits, ServerConfig
from penstock.net.server import Server

ALICE = User(name="alice", password="a")
BOB = User(name="bob", password="b")


def config(*users: User, **settings: object) -> ServerConfig:
    return ServerConfig(
        host="127.0.0.1", port=0, authorization=Authorization(users=users), **settings
    )


async def connect(server: Server, user: User) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await reader.readline()
    options = f'{{"verbose":false,"headers":true,"user":"{user.name}","pass":"{user.password}"}}'
    writer.write(f"CONNECT {options}\r\nPING\r\n".encode())
    assert await reader.readline() == b"PONG\r\n"
    return reader, writer


def run(scenario, *users, **settings):
    async def main():
        async with asyncio.timeout(20), Server(config(*users, **settings)) as server:
            await scenario(server)

    asyncio.run(main())


def test_a_user_that_is_gone_is_sent_away_and_the_others_stay():
    async def scenario(server):
        alice, alice_writer = await connect(server, ALICE)
        bob, bob_writer = await connect(server, BOB)

        server.reload(config(BOB))

        assert await alice.read() == b"-ERR 'Authorization Violation'\r\n"
        bob_writer.write(b"PING\r\n")
        assert await bob.readline() == b"PONG\r\n"
        alice_writer.close()
        bob_writer.close()

    run(scenario, ALICE, BOB)


def test_a_changed_password_sends_its_old_users_away():
    async def scenario(server):
        alice, writer = await connect(server, ALICE)

        server.reload(config(replace(ALICE, password="new")))

        assert await alice.read() == b"-ERR 'Authorization Violation'\r\n"
        writer.close()

    run(scenario, ALICE)


def test_new_permissions_end_the_subscriptions_they_do_not_allow():
    async def scenario(server):
        alice, writer = await connect(server, ALICE)
        writer.write(b"SUB a 1\r\nSUB b 2\r\nPING\r\n")
        assert await alice.readline() == b"PONG\r\n"
        rules = Permissions(subscribe=SubjectRules(allow=("a",)))

        server.reload(config(replace(ALICE, permissions=rules)))

        assert (
            await alice.readline() == b"-ERR 'Permissions Violation for Subscription to \"b\"'\r\n"
        )
        writer.write(b"PUB b 1\r\nx\r\nPUB a 1\r\ny\r\n")
        assert await alice.readline() == b"MSG a 1 1\r\n"
        writer.close()

    run(scenario, ALICE)


def test_a_smaller_payload_limit_holds_at_once_for_those_already_connected():
    async def scenario(server):
        alice, writer = await connect(server, ALICE)

        server.reload(config(ALICE, limits=Limits(max_payload=10)))

        writer.write(b"PUB a 11\r\n")
        assert await alice.readline() == b"-ERR 'Maximum Payload Violation'\r\n"
        writer.close()

    run(scenario, ALICE)


def test_what_needs_a_restart_is_named(caplog: pytest.LogCaptureFixture):
    async def scenario(server):
        server.reload(replace(server.config, port=4999))

        assert "`port` has changed: restart the server to apply it" in caplog.messages

    run(scenario, ALICE)


def test_a_password_that_became_a_hash_of_itself_changes_nothing_for_its_user():
    bcrypt = pytest.importorskip("bcrypt")

    async def scenario(server):
        alice, writer = await connect(server, ALICE)
        hashed = bcrypt.hashpw(b"a", bcrypt.gensalt(4)).decode()

        server.reload(config(replace(ALICE, password=hashed)))

        writer.write(b"SUB a 1\r\nPUB a 1\r\nx\r\nPING\r\n")
        assert await alice.readexactly(len(b"MSG a 1 1\r\nx\r\n")) == b"MSG a 1 1\r\nx\r\n"
        assert await alice.readline() == b"PONG\r\n"
        writer.close()

    run(scenario, ALICE)


def test_a_user_whose_new_hash_does_not_fit_is_sent_away():
    bcrypt = pytest.importorskip("bcrypt")

    async def scenario(server):
        alice, writer = await connect(server, ALICE)
        hashed = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()

        server.reload(config(replace(ALICE, password=hashed)))

        assert await alice.read() == b"-ERR 'Authorization Violation'\r\n"
        writer.close()

    run(scenario, ALICE)
