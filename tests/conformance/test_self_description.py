"""How a server describes itself, in INFO, on its pages and in its events: as nats-server does."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from typing import Any

import pytest
from tests.servers import HOST, PROGRAMS, Program, RawClient, ServerProcess

CONFIG = """
http: "127.0.0.1:-1"
system_account: S
accounts {
    S: { users: [{user: s, password: x}] }
    A: { users: [{user: a, password: x}], mappings: { "m.*": "orders.$1" } }
}
"""
WEBSOCKET = """
websocket {
    listen: "127.0.0.1:-1", no_tls: true, advertise: "example.org:99", no_auth_user: a
    handshake_timeout: "3s", same_origin: true, allowed_origins: ["http://example.org"]
    compression: true
}
"""
ADDRESSES = {
    "example.org": ("example.org", None),
    "example.org:77": ("example.org", 77),
    "[::1]:77": ("::1", 77),
    "[::1]": ("::1", None),
    ":77": ("", 77),
}


def page(server: ServerProcess, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{HOST}:{server.http_port}{path}", timeout=10) as answer:
        document: dict[str, Any] = json.load(answer)
    return document


@pytest.mark.parametrize(("advertised", "expected"), ADDRESSES.items())
def test_an_advertised_address_takes_the_place_of_the_own_one(
    program: Program, advertised: str, expected: tuple[str, int | None]
) -> None:
    config = f'{CONFIG}client_advertise: "{advertised}"\n'
    with ServerProcess(program, config) as server, RawClient(server.port) as client:
        varz = server.varz()

        host, port = expected
        assert (varz["host"], varz["port"]) == (host, port or server.port)
        assert (client.info["host"], client.info["port"]) == (host, port or server.port)
        assert "connect_urls" not in {**client.info, **varz}


@pytest.mark.parametrize(
    "websocket", ["", WEBSOCKET, 'websocket { port: -1, no_tls: true, handshake_timeout: "2s" }']
)
def test_both_tell_the_same_of_their_websocket(websocket: str) -> None:
    told = []
    for program in PROGRAMS:
        with ServerProcess(program, CONFIG + websocket) as server:
            found = server.varz()["websocket"]
            assert not websocket or found.pop("port") == server.websocket_port
            told.append(found)

    assert told[0] == told[1]


def test_both_tell_the_same_of_mappings() -> None:
    told = []
    for program in PROGRAMS:
        with ServerProcess(program, CONFIG) as server:
            told.append(page(server, "/accountz?acc=A")["account_detail"]["mappings"])

    assert told[0] == told[1] == {"m.*": [{"subject": "orders.$1", "weight": 100}]}


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGTERM, "SHUTDOWN"), (signal.SIGUSR2, "LAMEDUCK")]
)
def test_both_say_the_same_when_they_go(number: signal.Signals, kind: str) -> None:
    told = [_last_event(program, number, kind) for program in PROGRAMS]

    assert told[0] == told[1] >= {"id", "name", "host", "ver", "seq", "time"}


def _last_event(program: Program, number: signal.Signals, kind: str) -> set[str]:
    config = CONFIG + 'client_advertise: "example.org"\n'
    with ServerProcess(program, config) as server, RawClient(server.port) as client:
        client.connect(user="s", **{"pass": "x"})
        client.send(f"SUB $SYS.SERVER.{client.info['server_id']}.{kind} 1\r\n".encode())
        client.settle()
        server.signal(number)
        while not (line := client.line()).startswith(b"MSG"):
            pass
        event = json.loads(client.read(int(line.split()[-1])))
        assert event["host"] == "example.org"
        return set(event)


@pytest.mark.parametrize("address", ["::bad", "h:", "h:x", "::1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    for program in PROGRAMS:
        with pytest.raises(Exception, match=re.escape(address)):
            ServerProcess(program, f'client_advertise: "{address}"\n').__enter__()
