"""
Strangers: what they send before the server knows them costs it next to nothing.

Each case is put to the real server too.
"""

from __future__ import annotations

import json
import socket
import ssl

import pytest
from tests.certificates import Authority
from tests.servers import DEADLINE_S, HOST, Program, RawClient, ServerProcess, wait_until

CONNECTIONS_MAX = 10
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
HELLO = b"\x16\x03\x01\x02\x00\x01"
"""How a TLS handshake begins that does not go on."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("before_login"))


def tls(authority: Authority, **settings: object) -> str:
    pair = authority.server()
    return f"tls {json.dumps({'cert_file': str(pair.cert), 'key_file': str(pair.key)} | settings)}"


def knock(port: int, *pieces: bytes, stays: bool = False) -> socket.socket | None:
    """Send pieces one by one; hang up after that, or stay silently."""
    sock = socket.create_connection((HOST, port), DEADLINE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        try:
            sock.sendall(piece)
        except OSError:
            """It was thrown out before it had said everything."""
    if stays:
        return sock
    sock.close()
    return None


UNFINISHED = {
    "no header": (b"PR", b"X"),
    "no header at once": (b"PRX",),
    "half a header": (b"PROXY TC",),
    "a header of the second kind": (SIGNATURE[:8], b"nonsense"),
    "a header and no handshake": (b"PROXY UNKNOWN\r\n", b"GET / HTTP/1.1\r\n\r\n"),
    "half a handshake": (b"PROXY UNKNOWN\r\n", HELLO),
    "a handshake without a header": (HELLO,),
    "nothing": (),
}


@pytest.mark.parametrize("first", [False, True], ids=["INFO first", "handshake first"])
def test_a_client_that_never_gets_to_speak_leaves_nothing_behind(
    first: bool, authority: Authority, program: Program
) -> None:
    settings = f"proxy_protocol: true\nhttp_port: -1\nmax_connections: {CONNECTIONS_MAX}\n"
    config = settings + tls(authority, handshake_first=first, timeout=1)
    context = ssl.create_default_context(cafile=str(authority.ca))
    with ServerProcess(program, config) as server:
        for pieces in UNFINISHED.values():
            for _ in range(CONNECTIONS_MAX):
                knock(server.port, *pieces)
        # The header has five seconds to come, which are waited for once.
        silent = () if first else UNFINISHED.values()
        waiting = [knock(server.port, *pieces, stays=True) for pieces in silent]
        wait_until(lambda: server.varz()["connections"] == 0, timeout_s=3 * DEADLINE_S)

        # There is room for everybody the server allows.
        socks = [secured(server.port, context, greets=not first) for _ in range(CONNECTIONS_MAX)]
        assert server.varz()["connections"] == CONNECTIONS_MAX
        for sock in (*socks, *waiting):
            assert sock is not None
            sock.close()


def secured(port: int, context: ssl.SSLContext, *, greets: bool) -> ssl.SSLSocket:
    """Return a client that has been let in."""
    plain = socket.create_connection((HOST, port), DEADLINE_S)
    plain.sendall(b"PROXY UNKNOWN\r\n")
    said = b""
    while greets and not said.endswith(b"\r\n"):
        said += plain.recv(65536)
    sock = context.wrap_socket(plain, server_hostname="localhost")
    sock.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
    while b"PONG" not in said:
        data = sock.recv(65536)
        assert data, said
        said += data
    return sock


def test_a_client_that_asks_for_no_websocket_leaves_nothing_behind(program: Program) -> None:
    websocket = f"websocket {{ listen: '{HOST}:-1', no_tls: true, handshake_timeout: '1s' }}"
    with ServerProcess(program, f"http_port: -1\n{websocket}") as server:
        requests = (
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost",
            b"\xff\xfe\r\n\r\n",
            b"GET / HTTP/1.1\r\nSec-WebSocket-Key: \xe9\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
            b"Sec-WebSocket-Key: \xe9\xe9\r\n\r\n",
            b"x" * 100_000,
        )
        for request in requests:
            knock(server.websocket_port, request)
        waiting = [knock(server.websocket_port, each, stays=True) for each in requests]
        for sock in waiting:
            assert sock is not None
            try:
                while sock.recv(65536):
                    """Read on to the end."""
            except ConnectionResetError:
                """That is an end, too."""
            sock.close()

        assert server.varz()["connections"] == 0
        assert "Traceback" not in server.log
        with RawClient(server.port) as client:
            assert client.connect().settle() == []
