"""What a transcript cannot say: rules with time or numbers in them, on both servers."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from tests.conftest import Servers
from tests.servers import DEADLINE_S, HOST, Program, RawClient, ServerProcess, wait_until

CONFIGS = Path(__file__).parent / "configs"
INFO_TYPES = {
    "server_id": str,
    "server_name": str,
    "version": str,
    "proto": int,
    "go": str,
    "host": str,
    "port": int,
    "headers": bool,
    "max_payload": int,
    "client_id": int,
    "client_ip": str,
    "api_lvl": int,
}


def config(name: str) -> str:
    return (CONFIGS / f"{name}.conf").read_text()


def test_info_tells_a_client_what_it_needs(program: Program, servers: Servers) -> None:
    server = servers(program)
    with RawClient(server.port) as client:
        info = client.info

    assert INFO_TYPES == {name: type(info[name]) for name in INFO_TYPES}
    assert (info["port"], info["client_ip"], info["max_payload"]) == (server.port, HOST, 1048576)
    assert len(info["server_id"]) == 56
    assert "auth_required" not in info


def test_info_says_where_authorization_is_required(program: Program, servers: Servers) -> None:
    with RawClient(servers(program, config("user")).port) as client:
        assert client.info["auth_required"] is True


def test_every_connection_has_an_id_of_its_own(program: Program, servers: Servers) -> None:
    port = servers(program).port
    with RawClient(port) as one, RawClient(port) as other:
        assert one.info["client_id"] < other.info["client_id"]


def test_a_place_is_free_again_once_a_client_has_left(program: Program) -> None:
    with ServerProcess(program, "max_connections: 2") as server, RawClient(server.port) as first:
        # nats-server counts after its INFO, so each waits until it has been counted.
        assert first.settle() == []
        with RawClient(server.port) as second:
            assert second.settle() == []
            with RawClient(server.port) as third:
                assert third.rest() == [b"-ERR 'maximum connections exceeded'"]

        def is_let_in() -> bool:
            try:
                with RawClient(server.port) as client:
                    return client.settle() == []
            except (EOFError, OSError):
                return False

        wait_until(is_let_in)


def test_a_connection_that_answers_pings_stays(program: Program, servers: Servers) -> None:
    with RawClient(servers(program, config("pings")).port) as client:
        for _ in range(4):
            assert client.line() == b"PING"
            client.send(b"PONG\r\n")

        assert client.settle() == []


def test_a_response_is_allowed_until_it_expires(program: Program, servers: Servers) -> None:
    port = servers(program, config("responses")).port
    with RawClient(port) as client, RawClient(port) as responder:
        client.connect(user="client", **{"pass": "x"})
        responder.connect(user="brief", **{"pass": "x"})
        responder.send(b"SUB q.brief 1\r\n")
        responder.settle()
        client.send(b"SUB r.1 9\r\nPUB q.brief r.1 1\r\n?\r\n")
        client.settle()
        assert responder.settle() == [b"MSG q.brief 1 r.1 1", b"?"]

        answers: list[list[bytes]] = []

        def is_refused() -> bool:
            responder.send(b"PUB r.1 1\r\n!\r\n")
            answers.append(responder.settle())
            return answers[-1] != []

        wait_until(is_refused)

        assert answers[0] == []
        assert answers[-1] == [b"-ERR 'Permissions Violation for Publish to \"r.1\"'"]


def test_a_lame_duck_tells_clients_that_understand_it_and_takes_no_more(program: Program) -> None:
    lame_duck = 'lame_duck_duration: "30s", lame_duck_grace_period: "500ms"'
    with (
        ServerProcess(program, lame_duck) as server,
        RawClient(server.port) as old,
        RawClient(server.port) as new,
    ):
        old.connect(protocol=0)
        new.connect(protocol=1)
        assert b'"connect_info":true' in new.line()

        server.signal(signal.SIGUSR2)

        told = json.loads(new.line().removeprefix(b"INFO "))
        assert told["ldm"] is True
        with pytest.raises(ConnectionRefusedError), socket.create_connection((HOST, server.port)):
            pytest.fail("a lame duck took a new client")
        assert (old.settle(), new.settle()) == ([], [])
        assert (old.rest(), new.rest()) == ([], [])
        server.process.wait(DEADLINE_S)
