"""The PROXY protocol on the real server and on ours."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.conftest import Servers
from tests.servers import DEADLINE_S, HOST, Program, RawClient, ServerProcess

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
CONFIG = "proxy_protocol: true\nhttp_port: -1\n"
CONNECT = b'CONNECT {"verbose":false}\r\nPING\r\n'


def binary(command: int, kind: int, data: bytes) -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, kind, len(data)) + data


def addresses(family: int, source: str, target: str, port: int = 1234) -> bytes:
    ips = socket.inet_pton(family, source) + socket.inet_pton(family, target)
    return ips + struct.pack("!HH", port, 4222)


V4 = addresses(socket.AF_INET, "192.0.2.1", "192.0.2.2")
V6 = addresses(socket.AF_INET6, "2001:db8::1", "2001:db8::2")
HEADERS = {
    b"PROXY TCP4 192.0.2.1 192.0.2.2 1234 4222\r\n": ("192.0.2.1", 1234),
    b"PROXY TCP6 2001:db8::1 2001:db8::2 1234 4222\r\n": ("2001:db8::1", 1234),
    b"PROXY UNKNOWN\r\n": None,
    binary(0x21, 0x11, V4): ("192.0.2.1", 1234),
    binary(0x21, 0x11, V4 + b"\x04\x00\x01x"): ("192.0.2.1", 1234),
    binary(0x21, 0x21, V6): ("2001:db8::1", 1234),
    binary(0x20, 0x00, b""): None,
    binary(0x20, 0x11, V4): None,
    b"": None,
}
BAD = (
    b"PROXY TCP4 192.0.2.1\r\n",
    b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n",
    b"PROXY TCP4 nowhere 192.0.2.2 1 2\r\n",
    b"PROXY TCP6 fe80::1%zone ::1 1 2\r\n",
    b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
    b"PROXY " + b"x" * 200,
    binary(0x31, 0x11, V4),
    binary(0x22, 0x11, V4),
    binary(0x21, 0x12, V4),
    binary(0x21, 0x31, V4),
    binary(0x21, 0x11, b"short"),
)


def connection_of(server: ServerProcess, client_id: int) -> dict[str, Any]:
    url = f"http://{HOST}:{server.http_port}/connz?cid={client_id}"
    with urllib.request.urlopen(url) as answer:
        found: dict[str, Any] = json.load(answer)["connections"][0]
    return found


@pytest.mark.parametrize("piece_bytes", [1, 5, 1000])
def test_a_proxy_says_whom_it_speaks_for(
    piece_bytes: int, program: Program, servers: Servers
) -> None:
    server = servers(program, CONFIG)
    for header, expected in HEADERS.items():
        said = header + CONNECT
        with RawClient(server.port) as client:
            for start in range(0, len(said), piece_bytes):
                client.send(said[start : start + piece_bytes])
            assert client.line() == b"PONG"
            shown = connection_of(server, client.info["client_id"])
            own = client.sock.getsockname()
            assert (shown["ip"], shown["port"]) == (expected or own)


def test_a_header_that_makes_no_sense_ends_the_connection(
    program: Program, servers: Servers
) -> None:
    server = servers(program, CONFIG)
    for header in BAD:
        with RawClient(server.port) as client:
            client.send(header + CONNECT)

            assert (header, client.rest()) == (header, [])


@pytest.mark.parametrize("first", [False, True], ids=["INFO first", "handshake first"])
def test_a_header_comes_before_tls(first: bool, program: Program, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    tls = {"cert_file": str(pair.cert), "key_file": str(pair.key), "handshake_first": first}
    context = ssl.create_default_context(cafile=str(authority.ca))
    header = binary(0x21, 0x11, V4)
    with (
        ServerProcess(program, f"{CONFIG}tls {json.dumps(tls)}") as server,
        socket.create_connection((HOST, server.port), DEADLINE_S) as plain,
    ):
        plain.sendall(header)
        info = b""
        while not first and not info.endswith(b"\r\n"):
            info += plain.recv(65536)
        with context.wrap_socket(plain, server_hostname="localhost") as secured:
            secured.sendall(CONNECT)
            said = info
            while b"PONG" not in said:
                said += secured.recv(65536)
            client_id = json.loads(said.removeprefix(b"INFO ").partition(b"\r\n")[0])["client_id"]
            shown = connection_of(server, client_id)

    assert (shown["ip"], shown["port"]) == ("192.0.2.1", 1234)
