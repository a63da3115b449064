"""The life of a server in this process: start, serve, stop, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from pathlib import Path

import pytest
from tests.unit.net.streams import DEADLINE_S, QUIET, connected, run, until

import penstock
from penstock.config.accounts import User
from penstock.config.jetstream import JetStreamConfig
from penstock.config.server import Authorization, Limits, ServerConfig
from penstock.config.transport import WebSocketConfig
from penstock.errors import ConfigError
from penstock.net.server import Server

ANN = Authorization(users=(User(name="ann", password="x"),))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_it_picks_a_free_port_and_tells_clients_about_it() -> None:
    async def scenario(server: Server) -> None:
        assert server.port > 0
        assert server.url == f"nats://127.0.0.1:{server.port}"
        async with connected(server) as client:
            assert client.info["port"] == server.port
            assert re.fullmatch("N[A-Z2-7]{55}", client.info["server_id"])

    run(scenario)


@pytest.mark.parametrize("port", [0, -1])
def test_zero_and_minus_one_both_pick_a_port(port: int) -> None:
    async def scenario(server: Server) -> None:
        assert server.port > 0

    run(scenario, port=port)


def test_several_servers_live_beside_each_other() -> None:
    async def scenario(first: Server) -> None:
        async with Server() as second, connected(first) as one, connected(second) as other:
            await one.says(QUIET + b"SUB a 1\r\n")
            await other.says(QUIET + b"PUB a 1\r\nx\r\n")

            assert first.port != second.port
            assert (await other.settle(), await one.settle()) == ([], [])

    run(scenario)


@pytest.mark.parametrize("setting", ["port", "http_port"])
def test_a_port_in_use_is_an_error_that_names_it(setting: str) -> None:
    async def scenario(server: Server) -> None:
        with pytest.raises(ConfigError, match=rf"Error listening on port: 127.0.0.1:{server.port}"):
            await Server(**{setting: server.port}).start()

    run(scenario)


@pytest.mark.parametrize("setting", ["http_port", "websocket"])
def test_a_server_that_could_not_start_leaves_nothing_open(setting: str, tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        taken = server.port
        settings = {"http_port": taken}
        if setting == "websocket":
            listener = WebSocketConfig(host="127.0.0.1", port=taken, no_tls=True)
            settings = {"http_port": 0, "websocket": listener}
        jetstream = JetStreamConfig(store_dir=str(tmp_path))
        before = open_descriptors()
        with pytest.raises(ConfigError):
            await Server(**settings, jetstream=jetstream).start()

        await until(lambda: before == open_descriptors())

    run(scenario)


def test_it_listens_on_ipv6() -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("there is no IPv6 here")

    async def scenario(server: Server) -> None:
        assert server.url == f"nats://[::1]:{server.port}"
        reader, writer = await asyncio.open_connection("::1", server.port)
        assert (await reader.readline()).startswith(b"INFO ")
        writer.close()
        await writer.wait_closed()

    run(scenario, host="::1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_wildcard_address_is_reached_over_loopback(host: str) -> None:
    server = Server(host=host)
    server.port = 4222

    assert server.url == "nats://127.0.0.1:4222"


def test_a_configuration_can_be_given_whole_or_changed_by_settings() -> None:
    config = ServerConfig(host="127.0.0.1", port=0, server_name="one")

    assert Server(config).config is config
    assert Server(config, server_name="two").config.server_name == "two"


def test_stopping_closes_connections_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        before = open_descriptors()
        server = Server(http_port=0)
        await server.start()
        async with connected(server) as client:
            await asyncio.gather(server.stop(), server.stop())
            await server.wait_stopped()
            await server.stop()

            assert await client.line() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: open_descriptors() == before)

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))


def test_what_is_owed_is_written_before_a_stop() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as client:
            await client.says(QUIET)
            await client.settle()
            (session,) = server.broker.sessions.values()
            session.write(b"MSG last 1 0\r\n\r\n")
            await server.stop()

            assert await client.line() == b"MSG last 1 0\r\n"

    run(scenario)


def test_a_server_that_never_started_can_be_stopped() -> None:
    asyncio.run(Server().stop())


def test_who_does_not_authenticate_in_time_is_sent_away() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server) as silent, connected(server) as ann:
            await ann.says(b'CONNECT {"verbose":false,"user":"ann","pass":"x"}\r\n')

            assert await silent.line() == b"-ERR 'Authentication Timeout'\r\n"
            assert await silent.line() == b""
            assert await ann.settle() == []

    run(scenario, authorization=ANN, limits=Limits(auth_timeout=0.05))


def test_who_is_gone_before_the_timeout_is_not_missed() -> None:
    async def scenario(server: Server) -> None:
        async with connected(server):
            pass
        await until(lambda: not server.broker.sessions)
        async with connected(server) as silent:
            assert await silent.line() == b"-ERR 'Authentication Timeout'\r\n"

    run(scenario, authorization=ANN, limits=Limits(auth_timeout=0.05))


def test_a_lame_duck_with_no_clients_stops_at_once() -> None:
    async def scenario(server: Server) -> None:
        await server.lame_duck()

        assert not server.is_ready
        await server.wait_stopped()

    run(scenario, limits=Limits(lame_duck_grace_period=3600))


def test_a_lame_duck_lets_its_clients_go_one_after_another() -> None:
    limits = Limits(lame_duck_grace_period=0.02, lame_duck_duration=0.12)

    async def scenario(server: Server) -> None:
        async with connected(server) as one, connected(server) as two:
            for client in (one, two):
                await client.says(b'CONNECT {"verbose":false,"protocol":1}\r\n')
                await client.settle()
                assert b'"connect_info":true' in await client.line()
            duck = asyncio.create_task(server.lame_duck())

            told = [json.loads((await each.line()).removeprefix(b"INFO ")) for each in (one, two)]
            assert [info["ldm"] for info in told] == [True, True]
            assert await one.line() == b""
            assert len(server.broker.sessions) == 1
            assert await two.line() == b""
            await duck

    run(scenario, limits=limits)


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, ["example.org:99"]), ({"no_advertise": True}, None)]
)
def test_websocket_clients_are_told_where_else_to_go(
    settings: dict[str, object], expected: list[str] | None
) -> None:
    async def scenario(server: Server) -> None:
        assert server.broker.websocket_info.get("connect_urls") == expected

    websocket = WebSocketConfig(port=-1, no_tls=True, advertise="example.org:99")
    run(scenario, websocket=websocket, **settings)


def test_a_connection_that_is_gone_before_it_is_served_is_dropped() -> None:
    async def scenario(server: Server) -> None:
        gone = socket.socket()

        server.door.accept(gone)

        assert gone.fileno() == -1
        assert server.broker.sessions == {}

    run(scenario)


def test_a_server_for_scripts_keeps_streams_in_a_directory_that_goes_with_it() -> None:
    async def store(url: str) -> int:
        async with await penstock.connect(url) as client:
            jetstream = client.jetstream()
            await jetstream.streams.create("orders", subjects=["orders.>"])
            return (await jetstream.publish("orders.1", b"one")).sequence

    with penstock.serve(jetstream=True) as server:
        jetstream = server._server.config.jetstream
        assert jetstream is not None
        assert 1 == asyncio.run(store(server.url))
        assert Path(jetstream.store_dir).exists()
    assert not Path(jetstream.store_dir).exists()


def test_a_server_says_what_jetstream_must_be() -> None:
    with pytest.raises(ConfigError, match="`JetStreamConfig"):
        Server(jetstream="yes")  # type: ignore[arg-type]


def test_a_switch_gives_a_server_a_store_that_goes_with_it() -> None:
    async def scenario() -> Path:
        async with Server(jetstream=True) as server:
            assert server.config.jetstream is not None
            async with await penstock.connect(server.url) as client:
                await client.jetstream().streams.create("S", subjects=["s"])
            return Path(server.config.jetstream.store_dir)

    assert not asyncio.run(scenario()).exists()
