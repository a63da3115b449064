"""
Strangers: what they send before the server knows them costs it next to nothing.

Each case is put to the real server too.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

import bcrypt
import pytest
from tests.certificates import Authority
from tests.conftest import Servers
from tests.contract.credentials import ACCOUNT, Key, Realm
from tests.servers import DEADLINE_S, HOST, PENSTOCK, Program, RawClient, ServerProcess, wait_until

T = TypeVar("T")
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


def knock(port: int, *pieces: bytes, stays: bool = False) -> socket.socket:
    """Send pieces one by one; hang up after that, or stay silently."""
    sock = socket.create_connection((HOST, port), DEADLINE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        try:
            sock.sendall(piece)
        except OSError:
            """It was thrown out before it had said everything."""
    if not stays:
        sock.close()
    return sock


def knock_together(server: ServerProcess, pieces: tuple[bytes, ...]) -> None:
    """Send each piece from several clients, and see that the server has read it."""
    with ExitStack() as stack:
        socks = [
            stack.enter_context(knock(server.port, stays=True)) for _ in range(CONNECTIONS_MAX)
        ]
        for piece in pieces:
            for sock in socks:
                try:
                    sock.sendall(piece)
                except OSError:
                    """It was thrown out before it had said everything."""
            server.varz()


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
    # As long as the header has, so that a busy machine gets through a good handshake.
    config = settings + tls(authority, handshake_first=first, timeout=5)
    context = ssl.create_default_context(cafile=str(authority.ca))
    with ServerProcess(program, config) as server, ExitStack() as stack:
        for pieces in UNFINISHED.values():
            knock_together(server, pieces)
        # The header has five seconds to come, which are waited for once.
        silent = () if first else UNFINISHED.values()
        for pieces in silent:
            stack.enter_context(knock(server.port, *pieces, stays=True))

        # There is room again, for everybody the server allows.
        clients: list[socket.socket] = []

        def is_full() -> bool:
            try:
                client = secured(server.port, context, greets=not first)
                clients.append(stack.enter_context(client))
            except OSError:
                """There is none yet."""
            return len(clients) == CONNECTIONS_MAX

        wait_until(is_full, timeout_s=6 * DEADLINE_S)
        assert server.varz()["connections"] == CONNECTIONS_MAX


def secured(port: int, context: ssl.SSLContext, *, greets: bool) -> socket.socket:
    """Return a client that has been let in; OSError if it was not."""
    with ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection((HOST, port), DEADLINE_S))
        plain.sendall(b"PROXY UNKNOWN\r\n")
        said = b""
        while greets and not said.endswith(b"\r\n"):
            data = plain.recv(65536)
            if not data:
                raise ConnectionError(said)
            said += data
        # Not `wrap_socket`, which leaves the socket open where the server has hung up.
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")

        def do(action: Callable[[], T]) -> T:
            while True:
                try:
                    return action()
                except ssl.SSLWantReadError:
                    plain.sendall(outgoing.read())
                    data = plain.recv(65536)
                    if not data:
                        raise ConnectionError(said) from None
                    incoming.write(data)

        do(tls.do_handshake)
        tls.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        while b"PONG" not in said:
            data = do(lambda: tls.read(65536))
            if not data:
                raise ConnectionError(said)
            said += data
        stack.pop_all()
    return plain


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


PASSWORD = "authorization { user: ann, password: secret }\nhttp_port: -1\n"
ANY_ERROR = [b"-ERR"]
VIOLATION = b"-ERR 'Authorization Violation'"


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"PUB a 1000000\r\n", [VIOLATION]),
        (b"HPUB a 10 1000000\r\n", [VIOLATION]),
        (b"P", [VIOLATION]),
        (b"PING\r\n", [VIOLATION]),
        (b"PONG\r\n", [VIOLATION]),
        (b"SUB a 1\r\n", [VIOLATION]),
        (b"INFO {}\r\n", [VIOLATION]),
        (b"+OK\r\n", [VIOLATION]),
        (b"-ERR 'x'\r\n", [VIOLATION]),
        (b"\r\n", [VIOLATION]),
        (b"\0", [VIOLATION]),
        (b"connect {}\r\n", [VIOLATION]),
        (b"CONNECT {}\n", [VIOLATION]),
        (b"CXX\r\n", [b"-ERR 'Unknown Protocol Operation'"]),
        (b"CONNECT " + b"x" * 5000, [b"-ERR 'maximum control line exceeded'"]),
        (b"CONNECT {}" + b" " * 5000 + b"\r\n", [b"-ERR 'maximum control line exceeded'"]),
        (b"CONNECT {\r\n", []),
        (b"CONNECT []\r\n", []),
        (b"CONNECT\r\n", []),
        (b'CONNECT {"user":7}\r\n', []),
        (b'CONNECT {"user":"\\ud800","pass":"\\udfff"}\r\n', [VIOLATION]),
        (b'CONNECT {"user":"ann","pass":"\\ud800"}\r\n', [VIOLATION]),
        (b'CONNECT {"user":"ann\\u0000","pass":"secret"}\r\n', [VIOLATION]),
        (b'CONNECT {"user":"ann","pass":"secret\\u0000"}\r\n', [VIOLATION]),
        (b'CONNECT {"auth_token":"\\u0000"}\r\n', [VIOLATION]),
        (b'CONNECT {"nkey":"\xc3\xa9","sig":"\xc3\xa9"}\r\n', [VIOLATION]),
        (b'CONNECT {"jwt":"\xff.\xff.\xff"}\r\n', [VIOLATION]),
        (b'CONNECT {"user":"ann","pass":"secret","protocol":99}\r\n', ANY_ERROR),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, bytes) else "",
)
def test_a_stranger_is_refused_at_its_first_word(
    data: bytes, answer: list[bytes], program: Program, servers: Servers
) -> None:
    server = servers(program, PASSWORD)
    with RawClient(server.port) as client:
        client.send(data)

        lines = client.rest()
        assert lines == answer or (answer == ANY_ERROR and len(lines) == 1)
    assert "Traceback" not in server.log


def test_what_strangers_send_is_not_kept(program: Program) -> None:
    """The payload of a publish that nobody may make is not waited for."""
    size, largest = 1 << 20, 0
    with ServerProcess(program, PASSWORD) as server:
        before = server.resident_bytes
        said = b"PUB a %d\r\n" % size
        socks = [knock(server.port, said, bytes(size - 1), stays=True) for _ in range(60)]

        def is_over() -> bool:
            nonlocal largest
            largest = max(largest, server.resident_bytes)
            return bool(server.varz()["connections"] == 0)

        wait_until(is_over)
        for sock in socks:
            sock.close()

    assert largest - before < 20 << 20


def test_connect_may_be_said_over_and_over(program: Program) -> None:
    """Fields that mean nothing are not kept, whatever their names are."""
    with ServerProcess(program, "http_port: -1\n") as server, RawClient(server.port) as client:
        client.connect()
        before = server.resident_bytes
        for start in range(0, 20_000, 500):
            connects = [
                b'CONNECT {"verbose":false,"%d":"%b"}\r\n' % (number, b"x" * 2000)
                for number in range(start, start + 500)
            ]
            client.send(b"".join(connects))
            assert client.settle() == []

        assert server.resident_bytes - before < 20 << 20


@pytest.mark.parametrize("first", [b"", b"PING\r\n", b"SUB a 1\r\nPING\r\n"])
@pytest.mark.parametrize("others", ["", "no_auth_user: ann"])
def test_whoever_says_nothing_is_let_go(others: str, first: bytes, program: Program) -> None:
    """With `no_auth_user` nobody has to log in, but a connection without a word is no client."""
    config = f"authorization {{ timeout: 1, users: [{{user: ann, password: b}}] }}\n{others}\n"
    with ServerProcess(program, config) as server, knock(server.port, first, stays=True) as sock:
        said = b""
        while b"-ERR" not in said and b"PONG" not in said:
            data = sock.recv(65536)
            assert data, said
            said += data

        expected = b"PONG" if others and first else b"-ERR 'Auth"
        assert expected in said


HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(12)).decode()


def test_a_flood_of_passwords_keeps_nobody_else_out() -> None:
    """Whoever waits at another address has its turn, however many wait at one."""
    config = f'authorization {{ timeout: 60, users: [ {{ user: ann, password: "{HASH}" }} ] }}'
    wrong = b'CONNECT {"user":"ann","pass":"wrong"}\r\nPING\r\n'
    right = b'CONNECT {"verbose":false,"user":"ann","pass":"secret"}\r\nPING\r\n'
    with ServerProcess(PENSTOCK, config) as server, ExitStack() as stack:
        flood = [stack.enter_context(knock(server.port, stays=True)) for _ in range(400)]
        honest = socket.create_connection((HOST, server.port), DEADLINE_S, ("127.0.0.2", 0))
        stack.enter_context(honest)
        for sock in flood:
            sock.sendall(wrong)
        wait_until(lambda: "Too many passwords" in server.log)
        honest.sendall(right)
        said = b""
        while b"PONG" not in said:
            data = honest.recv(65536)
            assert data, said
            said += data


NESTED = base64.urlsafe_b64encode(b"[" * 100_000).decode().rstrip("=")
ENDLESS = base64.urlsafe_b64encode(b'{"alg":"ed25519","exp":1e999}').decode().rstrip("=")


def test_tokens_that_are_none_cost_a_line_each(program: Program) -> None:
    account, realm = Key(ACCOUNT), Realm()
    realm.sign(account, "account")
    jwts = (f"{NESTED}.{NESTED}.x", f"{ENDLESS}.{ENDLESS}.x", "\ud800.\ud800.\ud800", "é.é.é", "..")
    with ServerProcess(program, f"max_control_line: 1MB\n{realm.config}") as server:
        before = len(server.log)
        for jwt in jwts:
            with RawClient(server.port) as client:
                said = {"jwt": jwt, "sig": jwt[:1000]}
                client.send(b"CONNECT %b\r\n" % json.dumps(said).encode())
                assert client.rest() == [VIOLATION]

        assert "Traceback" not in server.log
        assert len(server.log) - before < 400 * len(jwts)


def test_a_handshake_that_does_not_go_on_is_given_up(
    authority: Authority, program: Program
) -> None:
    """However many hold a place, and however slowly they send, they hold it for the timeout."""
    with ServerProcess(program, f"http_port: -1\n{tls(authority, timeout=1)}") as server:
        before = server.resident_bytes
        socks = [knock(server.port, HELLO, stays=True) for _ in range(100)]
        for byte in HELLO[1:]:
            for sock in socks:
                try:
                    sock.send(bytes([byte]))
                except OSError:
                    """Thrown out already."""
        wait_until(lambda: server.varz()["connections"] == 0)
        assert server.resident_bytes - before < 48 << 20
        for sock in socks:
            sock.close()
