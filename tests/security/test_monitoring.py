"""The monitoring port, which anybody in reach may talk to: bounded, and open for a probe."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.conftest import Servers
from tests.servers import HOST, PENSTOCK, RawClient, ServerProcess, wait_until

from penstock.net.monitor.http import CONNECTIONS_MAX

CONFIG = """
http: "127.0.0.1:-1"
accounts {
  OURS { users: [ { user: ours, password: pw } ] }
  THEIRS { users: [ { user: theirs, password: pw } ] }
  SYS { users: [ { user: sys, password: pw } ] }
}
system_account: SYS
"""
REPORT = {"stream": "S", "batch": 1, "rows_per_s": 1, "behind_messages": 0, "behind_s": 0}


@pytest.fixture
def server(servers: Servers) -> ServerProcess:
    return servers(PENSTOCK, CONFIG)


@pytest.fixture
def idle(server: ServerProcess) -> Iterator[list[socket.socket]]:
    """Yield as many connections as there are places, and then some, all without a word."""
    with ExitStack() as stack:
        address = (HOST, server.http_port)
        yield [
            stack.enter_context(socket.create_connection(address, 10))
            for _ in range(CONNECTIONS_MAX + 32)
        ]


def ask(server: ServerProcess, request: bytes) -> bytes:
    with socket.create_connection((HOST, server.http_port), 10) as sock:
        sock.sendall(request)
        pieces = []
        while piece := sock.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def get(server: ServerProcess, path: str) -> Any:
    with urllib.request.urlopen(f"http://{HOST}:{server.http_port}{path}", timeout=20) as answer:
        return json.load(answer, parse_constant=pytest.fail)


def test_idle_connections_leave_a_place_for_a_probe(
    server: ServerProcess, idle: list[socket.socket]
) -> None:
    for _ in range(5):
        assert {"status": "ok"} == get(server, "/healthz")


def test_two_lengths_are_refused(server: ServerProcess) -> None:
    """A proxy may have believed the other length: what follows would be somebody's request."""
    smuggled = b"GET /varz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = ask(
        server,
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nContent-Length: 0\r\n\r\n%b"
        % (len(smuggled), smuggled),
    )

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert 1 == answer.count(b"HTTP/1.1")


@pytest.mark.parametrize("figure", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 400])
def test_a_pipeline_that_reports_no_number_breaks_no_page(
    server: ServerProcess, figure: bytes
) -> None:
    report = json.dumps({"name": "odd", **REPORT}).encode().replace(b'"batch": 1', b'"batch": X')
    publish(server, "theirs", [report.replace(b"X", figure)])

    assert "odd" not in [each["name"] for each in get(server, "/pipelinez")["pipelines"]]


def test_one_tenant_pushes_out_no_other_tenants_pipelines(server: ServerProcess) -> None:
    publish(server, "ours", [json.dumps({"name": "orders", **REPORT}).encode()])
    flood = [json.dumps({"name": f"flood-{n}", **REPORT}).encode() for n in range(600)]
    publish(server, "theirs", flood)
    wait_until(lambda: "flood-599" in str(get(server, "/pipelinez")))
    shown = get(server, "/pipelinez")["pipelines"]

    assert ["orders"] == [each["name"] for each in shown if each["account"] == "OURS"]
    assert len(shown) <= 256


def publish(server: ServerProcess, user: str, reports: list[bytes]) -> None:
    with RawClient(server.port) as client:
        client.connect(user=user, **{"pass": "pw"})
        for report in reports:
            client.send(b"PUB $PENSTOCK.PIPELINE %d\r\n%b\r\n" % (len(report), report))
        assert [] == client.settle()
