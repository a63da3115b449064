"""WebSocket on the real server and on ours: frames by hand, and a foreign client."""

from __future__ import annotations

import json
import ssl
import zlib
from pathlib import Path

import nats
import pytest
from tests.certificates import Authority
from tests.conftest import Servers
from tests.servers import DEADLINE_S, HOST, PENSTOCK, Program, RawClient, ServerProcess
from tests.websocket import BINARY, CLOSE, PING, PONG, TEXT, RawWebSocket, frame, run_nats_py

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
DEFLATE = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"


def config(*lines: str) -> str:
    """Return the configuration of a server with a WebSocket listener."""
    return "\n".join(("websocket {", f"listen: '{HOST}:-1'", "no_tls: true", *lines, "}"))


def open_websocket(server: ServerProcess, **headers: str | None) -> RawWebSocket:
    """Connect, upgrade and read the INFO."""
    client = RawWebSocket(server.websocket_port).upgrade(**headers)
    client.read_until(b"\r\n")
    return client


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("websocket"))


def test_info_is_that_of_the_listener(program: Program, servers: Servers) -> None:
    server = servers(program, config())
    with RawWebSocket(server.websocket_port).upgrade() as client, RawClient(server.port) as plain:
        info = json.loads(client.read_until(b"\r\n").removeprefix(b"INFO "))

        assert (info["host"], info["port"]) == (HOST, server.websocket_port)
        assert info.keys() == plain.info.keys()


def test_messages_go_between_websocket_and_tcp(program: Program, servers: Servers) -> None:
    server = servers(program, config())
    with open_websocket(server) as client, RawClient(server.port) as plain:
        plain.connect().send(b"SUB from.ws 1\r\n")
        plain.settle()
        client.say(CONNECT + b"SUB from.tcp 9\r\nPUB from.ws 5\r\nhello\r\nPING\r\n")
        client.read_until(b"PONG\r\n")
        assert (plain.line(), plain.line()) == (b"MSG from.ws 1 5", b"hello")

        plain.send(b"PUB from.tcp 3\r\nyes\r\n")
        assert client.read_until(b"yes\r\n") == b"MSG from.tcp 9 3\r\nyes\r\n"


@pytest.mark.parametrize("opcode", [BINARY, TEXT])
def test_frames_may_cut_the_protocol_anywhere(
    opcode: int, program: Program, servers: Servers
) -> None:
    text = CONNECT + b"SUB a 1\r\nPUB a 5\r\nhello\r\nPING\r\n"
    with open_websocket(servers(program, config())) as client:
        frames = [frame(opcode if not i else 0, text[i : i + 1], is_final=False) for i in range(20)]
        frames += [frame(0, text[20:40]), frame(PING, b"between")]
        frames += [frame(opcode, text[i : i + 1]) for i in range(40, len(text))]
        for index, byte in enumerate(b"".join(frames)):
            client.sock.send(bytes([byte]))
            if index == len(frames[0]):
                client.sock.send(b"")

        assert client.frame() == (0x80 | PONG, b"between")
        assert client.read_until(b"PONG\r\n") == b"MSG a 1 5\r\nhello\r\nPONG\r\n"


def test_large_messages_go_both_ways(program: Program, servers: Servers) -> None:
    payload = bytes(range(256)) * 3900
    with open_websocket(servers(program, config())) as client:
        client.say(CONNECT + b"SUB large 1\r\n")
        expected = b"MSG large 1 %d\r\n%b\r\n" % (len(payload), payload)
        for _ in range(4):
            client.say(b"PUB large %d\r\n%b\r\nPING\r\n" % (len(payload), payload))
            assert client.read_until(b"PONG\r\n") == expected + b"PONG\r\n"


def test_compression_is_used_where_it_was_agreed_on(program: Program, servers: Servers) -> None:
    server = servers(program, config("compression: true"))
    with RawWebSocket(server.websocket_port) as client:
        head = client.ask(Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits")
        assert f"Sec-WebSocket-Extensions: {DEFLATE}".encode() in head
        # Enough to be worth it, and too little to be.
        assert client.frame()[0] == 0xC0 | BINARY
        deflater = zlib.compressobj(wbits=-15)
        text = CONNECT + b"SUB a 1\r\nPUB a 200\r\n" + b"x" * 200 + b"\r\n"
        packed = (deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]
        client.sock.sendall(frame(BINARY, packed, reserved=0x40))
        first, payload = client.frame()

        assert first == 0xC0 | BINARY
        inflated = zlib.decompressobj(-15).decompress(payload + b"\x00\x00\xff\xff")
        assert inflated == b"MSG a 1 200\r\n" + b"x" * 200 + b"\r\n"
        client.say(b"PING\r\n")
        assert client.frame() == (0x80 | BINARY, b"PONG\r\n")


@pytest.mark.parametrize("extensions", ["", "permessage-foo"])
def test_a_client_that_does_not_compress_is_not_compressed_to(
    extensions: str, program: Program, servers: Servers
) -> None:
    server = servers(program, config("compression: true"))
    with RawWebSocket(server.websocket_port) as client:
        head = client.ask(Sec_WebSocket_Extensions=extensions or None)

        assert b"Extensions" not in head
        assert client.frame()[0] == 0x80 | BINARY


@pytest.mark.parametrize(
    ("method", "changes", "status"),
    [
        ("POST", {}, 405),
        ("GET", {"Upgrade": None}, 400),
        ("GET", {"Upgrade": "h2c"}, 400),
        ("GET", {"Connection": "close"}, 400),
        ("GET", {"Sec_WebSocket_Key": None}, 400),
        ("GET", {"Sec_WebSocket_Key": "short"}, 400),
        ("GET", {"Sec_WebSocket_Version": "12"}, 400),
        ("GET", {"Host": None}, 400),
        ("GET", {"Connection": "keep-alive, Upgrade"}, 101),
        ("GET", {"Upgrade": "WebSocket"}, 101),
    ],
    ids=repr,
)
def test_only_an_upgrade_is_answered_with_one(
    method: str, changes: dict[str, str | None], status: int, program: Program, servers: Servers
) -> None:
    with RawWebSocket(servers(program, config()).websocket_port) as client:
        head = client.ask(method, **changes)

        assert head.startswith(b"HTTP/1.1 %d " % status), head


@pytest.mark.parametrize(
    ("settings", "origin", "status"),
    [
        ("same_origin: true", None, 101),
        ("same_origin: true", "http://localhost", 101),
        ("same_origin: true", "https://localhost", 403),
        ("same_origin: true", "http://localhost:81", 403),
        ("allowed_origins: ['http://a.org', 'https://b.org:444']", "http://a.org", 101),
        ("allowed_origins: ['http://a.org', 'https://b.org:444']", "http://a.org:80", 101),
        ("allowed_origins: ['http://a.org', 'https://b.org:444']", "https://b.org:444", 101),
        ("allowed_origins: ['http://a.org', 'https://b.org:444']", "https://b.org", 403),
        ("allowed_origins: ['http://a.org', 'https://b.org:444']", "nonsense", 403),
    ],
)
def test_web_pages_from_elsewhere_are_refused(
    settings: str, origin: str | None, status: int, program: Program, servers: Servers
) -> None:
    with RawWebSocket(servers(program, config(settings)).websocket_port) as client:
        head = client.ask(Origin=origin)

        assert head.startswith(b"HTTP/1.1 %d " % status), head


def test_the_answer_has_the_headers_that_were_asked_for(program: Program, servers: Servers) -> None:
    server = servers(program, config('headers { X-Header: "its value" }'))
    with RawWebSocket(server.websocket_port) as client:
        assert b"X-Header: its value" in client.ask()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (frame(CLOSE, b"\x03\xe8bye"), 1000),
        (frame(CLOSE, b"\x0b\xb8mine"), 3000),
        (frame(CLOSE, b"\x03\xe8\xff\xff"), 1007),
        (frame(BINARY, CONNECT + b"PUB a 99999999\r\n"), 1009),
    ],
    ids=["close", "own status", "no utf-8", "size"],
)
def test_the_end_comes_with_a_status(
    data: bytes, status: int, program: Program, servers: Servers
) -> None:
    with open_websocket(servers(program, config())) as client:
        client.sock.sendall(data)

        assert client.closing()[0] == status


@pytest.mark.parametrize(
    "data",
    [
        frame(CLOSE, b"\x03\xed"),
        frame(BINARY, b"x", is_masked=False),
        frame(3),
        frame(BINARY, b"NONSENSE\r\n"),
    ],
    ids=["bad status", "mask", "opcode", "operation"],
)
def test_what_is_against_the_rules_ends_with_a_status(data: bytes, servers: Servers) -> None:
    """Only ours: the real server often hangs up without a word here."""
    with open_websocket(servers(PENSTOCK, config())) as client:
        client.sock.sendall(data)

        assert client.closing()[0] == 1002


def test_a_client_may_leave_its_frames_unmasked_if_it_asks(
    program: Program, servers: Servers
) -> None:
    with open_websocket(servers(program, config()), Nats_No_Masking="true") as client:
        client.sock.sendall(frame(BINARY, CONNECT + b"PING\r\n", is_masked=False))

        assert client.read_until(b"PONG\r\n") == b"PONG\r\n"


def test_who_asks_for_nothing_is_let_go_of(program: Program, servers: Servers) -> None:
    server = servers(program, config('handshake_timeout: "200ms"'))
    with RawWebSocket(server.websocket_port) as client:
        client.sock.sendall(b"GET / HTTP/1.1\r\n")

        assert client.frame() == (0, b"")


USERS = "authorization { users = [ {user: ann, password: secret}, {user: guest, password: x} ] }\n"


@pytest.mark.parametrize(
    ("auth", "settings", "cookie", "is_let_in"),
    [
        (USERS, "user_cookie: u, pass_cookie: p", "u=ann; p=secret", True),
        (USERS, "user_cookie: u, pass_cookie: p", "p=wrong; u=ann", False),
        (USERS, "user_cookie: u, pass_cookie: p", "other=ann", False),
        ("authorization { token: t0ken }\n", "token_cookie: tok", "tok=t0ken", True),
        ("authorization { token: t0ken }\n", "token_cookie: tok", "tok=t1ken", False),
        (USERS, "no_auth_user: guest", "", True),
        (USERS, "", "", False),
    ],
)
def test_cookies_say_who_a_client_is(
    auth: str, settings: str, cookie: str, is_let_in: bool, program: Program, servers: Servers
) -> None:
    server = servers(program, auth + config(settings))
    with open_websocket(server, Cookie=cookie or None) as client:
        client.say(CONNECT + b"PING\r\n")

        if is_let_in:
            assert client.read_until(b"PONG\r\n") == b"PONG\r\n"
        else:
            assert client.read_until(b"\r\n") == b"-ERR 'Authorization Violation'\r\n"
            assert client.closing()[0] == 1008


@pytest.mark.parametrize("is_secure", [False, True], ids=["ws", "wss"])
@pytest.mark.parametrize("settings", ["", "compression: true"])
def test_a_foreign_client_sends_and_receives(
    is_secure: bool, settings: str, authority: Authority, program: Program, servers: Servers
) -> None:
    scheme, text = "ws", config(settings)
    if is_secure:
        pair = authority.server()
        tls = f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}" }}'
        scheme, text = "wss", config(settings).replace("no_tls: true", tls)
    server = servers(program, text)

    async def scenario() -> None:
        client = await nats.connect(
            f"{scheme}://localhost:{server.websocket_port}",
            tls=_context(authority.ca) if is_secure else None,
            allow_reconnect=False,
        )
        subscription = await client.subscribe("a")
        for number in range(100):
            await client.publish("a", b"%d " % number * 5000)
        received = [(await subscription.next_msg(DEADLINE_S)).data for _ in range(100)]
        await client.close()
        assert received == [b"%d " % number * 5000 for number in range(100)]

    run_nats_py(scenario())


def _context(ca: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca))


@pytest.mark.parametrize(
    ("block", "good", "bad"),
    [
        ("user: ann, password: secret", {"user": "ann", "pass": "secret"}, {"user": "ann"}),
        ("token: t0ken", {"auth_token": "t0ken"}, {"auth_token": "guess"}),
    ],
    ids=["user", "token"],
)
@pytest.mark.parametrize("others", ["", "authorization { user: bob, password: other }"])
def test_the_listener_may_have_a_user_of_its_own(
    others: str, block: str, good: dict[str, str], bad: dict[str, str], program: Program
) -> None:
    configured = config(f"authorization {{ {block}, timeout: 5 }}") + "\n" + others
    with ServerProcess(program, configured) as server:
        for options in (bad, {}, {"user": "bob", "pass": "other"}):
            with open_websocket(server) as client:
                client.say(b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode())
                client.read_until(b"-ERR 'Authorization Violation'\r\n")
        with open_websocket(server) as client:
            client.say(b"CONNECT %b\r\nPING\r\n" % json.dumps(good | {"verbose": False}).encode())
            client.read_until(b"PONG\r\n")
        own = {"user": "bob", "pass": "other"} if others else {}
        with RawClient(server.port) as plain:
            assert plain.connect(**own).settle() == []
            assert plain.info.get("auth_required", False) == bool(others)
