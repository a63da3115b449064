"""
Frames of WebSocket that mean harm: they cost who sends them, and nobody else.

Each case is put to the real server too, where it has an answer of its own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.conformance.test_auth_callout import config as callout_config
from tests.conftest import Servers
from tests.servers import (
    DEADLINE_S,
    HOST,
    PENSTOCK,
    Program,
    RawClient,
    ServerProcess,
    wait_until,
)
from tests.websocket import BINARY, CLOSE, PING, RawWebSocket, frame

MEGABYTE = 1 << 20
CONTINUATION, COMPRESSED, FINAL = 0, 0x40, 0x80
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
WEBSOCKET = f"websocket {{ listen: '{HOST}:-1', no_tls: true, compression: true }}\nhttp_port: -1\n"
GROWTH_BYTES_MAX = 48 * MEGABYTE


def deflated(text: bytes) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflater.compress(text) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]


def bomb(text: bytes) -> bytes:
    """Return a frame that is small, and says very much."""
    packed = frame(BINARY, deflated(text), reserved=COMPRESSED)
    assert len(packed) * 100 < len(text)
    return packed


@contextmanager
def websocket(server: ServerProcess) -> Iterator[RawWebSocket]:
    """Return a client that has read its INFO."""
    with RawWebSocket(server.websocket_port) as client:
        client.upgrade(Sec_WebSocket_Extensions="permessage-deflate")
        client.frame()
        yield client


def answers(client: RawWebSocket) -> bytes:
    """Return what the server says, control frames left out, until it closes or says PONG."""
    said = b""
    while not said.endswith(b"PONG\r\n"):
        first, payload = client.frame()
        if not first or first == FINAL | CLOSE:
            break
        if first & 0x0F == BINARY:
            said += payload
    return said


def send_anyway(client: RawWebSocket, data: bytes) -> None:
    try:
        client.sock.sendall(data)
    except OSError:
        """The server has hung up already."""


def test_a_bomb_is_refused(program: Program, servers: Servers) -> None:
    """Either server lets a compressed message grow to what messages may have, and not beyond."""
    server = servers(program, WEBSOCKET)
    before = server.resident_bytes
    with websocket(server) as client:
        client.say(CONNECT)
        client.sock.sendall(bomb(b"+OK\r\n" * (60 * MEGABYTE // 5) + b"PING\r\n"))

        assert answers(client) == b""
    wait_until(lambda: server.varz()["connections"] == 0)
    assert server.resident_bytes - before < GROWTH_BYTES_MAX


def test_many_messages_may_be_compressed_together(servers: Servers) -> None:
    """Only ours: the real server takes no more in one frame than a payload may have."""
    with websocket(servers(PENSTOCK, WEBSOCKET)) as client:
        client.say(CONNECT)
        client.sock.sendall(bomb(b"+OK\r\n" * (7 * MEGABYTE // 5) + b"PING\r\n"))

        assert answers(client) == b"PONG\r\n"


def test_others_are_served_while_a_bomb_goes_off() -> None:
    """Only ours: the real server closes before."""
    with (
        ServerProcess(PENSTOCK, f"{WEBSOCKET}max_payload: 8MB\n") as server,
        RawClient(server.port) as other,
        websocket(server) as client,
    ):
        other.connect().send(b"SUB last 1\r\n")
        other.settle()
        client.say(CONNECT)
        text = b"+OK\r\n" * (30 * MEGABYTE // 5) + b"PUB last 4\r\nword\r\n"
        client.sock.sendall(bomb(text))

        # The last word of the bomb comes after what others ask for meanwhile.
        for _ in range(5):
            assert other.settle() == []
        other.sock.settimeout(10 * DEADLINE_S)
        assert (other.line(), other.line()) == (b"MSG last 1 4", b"word")


def test_a_bomb_does_not_grow_while_it_is_not_known_who_sent_it(program: Program) -> None:
    # The service that says who users are is away, so everybody waits for the timeout.
    config = f"{WEBSOCKET}max_payload: 8MB\n{callout_config(timeout=2)}"
    with ServerProcess(program, config) as server, ExitStack() as stack:
        before = server.resident_bytes
        clients = [stack.enter_context(websocket(server)) for _ in range(3)]
        text = CONNECT + b"PING\r\n" * (7 * MEGABYTE // 6)
        for client in clients:
            send_anyway(client, bomb(text))
        largest = 0

        def is_over() -> bool:
            nonlocal largest
            largest = max(largest, server.resident_bytes)
            return bool(server.varz()["connections"] == 0)

        wait_until(is_over, timeout_s=3 * DEADLINE_S)
        assert largest - before < GROWTH_BYTES_MAX


def test_a_bomb_that_does_not_say_who_it_is_from_is_refused_at_its_first_word(
    program: Program, servers: Servers
) -> None:
    server = servers(program, f"{WEBSOCKET}authorization {{ token: t0ken }}\n")
    before = server.resident_bytes
    with websocket(server) as client:
        size = 900_000
        client.sock.sendall(bomb(b"PUB a %d\r\n%b\r\n" % (size, bytes(size))))

        assert answers(client) == b"-ERR 'Authorization Violation'\r\n"
    assert server.resident_bytes - before < GROWTH_BYTES_MAX


def flood(server: ServerProcess, *frames: bytes) -> None:
    """Send frames, and see that the client is served as before, and has cost no memory."""
    before = server.resident_bytes
    with websocket(server) as client, RawClient(server.port) as other:
        other.connect()
        client.say(CONNECT)
        for data in frames:
            client.sock.sendall(data)
            assert other.settle() == []
        client.say(b"PING\r\n")
        assert answers(client) == b"PONG\r\n"
    assert server.resident_bytes - before < GROWTH_BYTES_MAX


def test_a_message_may_have_any_number_of_empty_pieces(program: Program, servers: Servers) -> None:
    empty = frame(CONTINUATION, is_final=False) * 1000
    start = frame(BINARY, is_final=False)
    end = frame(CONTINUATION)

    flood(servers(program, WEBSOCKET), start, *[empty] * 100, end)


def test_a_compressed_message_may_have_any_number_of_empty_pieces(servers: Servers) -> None:
    """Only ours: the real server takes a compressed message that begins with nothing for wrong."""
    empty = frame(CONTINUATION, is_final=False) * 1000
    start = frame(BINARY, deflated(b"+OK\r\n"), is_final=False, reserved=COMPRESSED)

    flood(servers(PENSTOCK, WEBSOCKET), start, *[empty] * 100, frame(CONTINUATION))


def test_any_number_of_empty_messages_may_come(program: Program, servers: Servers) -> None:
    flood(servers(program, WEBSOCKET), *[frame(BINARY) * 1000] * 100)


def test_control_frames_may_come_between_pieces(program: Program, servers: Servers) -> None:
    text = b"+OK\r\n" * 100
    pieces = [frame(CONTINUATION, text[at : at + 1], is_final=False) for at in range(len(text))]
    between = b"".join(piece + frame(PING, bytes(125)) for piece in pieces)
    start = frame(BINARY, is_final=False)

    flood(servers(program, WEBSOCKET), start, *[between] * 20, frame(CONTINUATION))


def test_who_pings_and_does_not_listen_fills_nothing(servers: Servers) -> None:
    """Only ours: of many pings that came together, one is answered."""
    server = servers(PENSTOCK, WEBSOCKET)
    before = server.resident_bytes
    with websocket(server) as client, RawClient(server.port) as other:
        client.say(CONNECT)
        client.sock.settimeout(1)
        pings = frame(PING) * 20_000
        try:
            for _ in range(100):
                client.sock.sendall(pings)
        except OSError:
            """It was held back, or thrown out."""
        assert other.connect().settle() == []
        assert server.resident_bytes - before < GROWTH_BYTES_MAX


def test_a_frame_without_end_is_taken_as_it_comes(program: Program, servers: Servers) -> None:
    server = servers(program, WEBSOCKET)
    before = server.resident_bytes
    with websocket(server) as client:
        client.sock.sendall(bytes((FINAL | BINARY, 0x80 | 127)) + (1 << 62).to_bytes(8) + bytes(4))
        client.sock.sendall(CONNECT)
        for _ in range(20):
            client.sock.sendall(b"+OK\r\n" * (MEGABYTE // 5))
        client.sock.sendall(b"PING\r\n")

        assert answers(client) == b"PONG\r\n"
    assert server.resident_bytes - before < GROWTH_BYTES_MAX


@pytest.mark.parametrize(
    "data",
    [
        bytes((FINAL | BINARY, 0x80 | 127)) + b"\xff" * 8 + bytes(4) + CONNECT,
        frame(BINARY, CONNECT, is_masked=False),
        frame(PING, bytes(126)),
        frame(PING, is_final=False),
        frame(CONTINUATION, CONNECT),
        frame(BINARY, is_final=False) + frame(BINARY, CONNECT),
        frame(3, CONNECT),
        frame(BINARY, b"\xff" * 100, reserved=COMPRESSED),
        frame(PING, b"x", reserved=COMPRESSED),
        frame(BINARY, CONNECT, reserved=0x20),
    ],
    ids=[
        *("a length below zero", "unmasked", "a large ping", "a cut ping", "no message"),
        *("two messages", "no opcode", "no deflate", "a deflated ping", "reserved"),
    ],
)
def test_what_is_no_frame_ends_its_own_connection_alone(
    data: bytes, program: Program, servers: Servers
) -> None:
    server = servers(program, WEBSOCKET)
    with RawClient(server.port) as other, websocket(server) as client:
        other.connect()
        client.sock.sendall(data)
        client.sock.sendall(frame(BINARY, CONNECT + b"PING\r\n"))

        assert answers(client) == b""
        assert other.settle() == []


def test_a_client_that_says_goodbye_has_been_heard(program: Program, servers: Servers) -> None:
    """What came before the close frame counts, however close they come together."""
    server = servers(program, WEBSOCKET)
    with RawClient(server.port) as other, websocket(server) as client:
        other.connect().send(b"SUB last 1\r\n")
        other.settle()
        said = frame(BINARY, CONNECT + b"PUB last 4\r\nword\r\n")
        client.sock.sendall(said + frame(CLOSE, b"\x03\xe8"))

        assert client.closing()[0] == 1000
        assert (other.line(), other.line()) == (b"MSG last 1 4", b"word")


def test_what_came_with_the_password_is_done_once_it_is_known_to_be_right(
    servers: Servers, program: Program
) -> None:
    hashed = "$2b$04$6.KkmGF6VNcjO61iUhRuhuDBWUkLtwdvIZJgafecmJo6wLvgsvdvy"
    config = f"{WEBSOCKET}authorization {{ users = [ {{user: ann, password: '{hashed}'}} ] }}\n"
    options = {"verbose": False, "user": "ann", "pass": "secret"}
    with websocket(servers(program, config)) as client:
        text = b"CONNECT %b\r\n" % json.dumps(options).encode()
        text += b"SUB a 1\r\n" + b"PUB a 2\r\nhi\r\n" * 3 + b"PING\r\n"
        client.sock.sendall(frame(BINARY, deflated(text), reserved=COMPRESSED))

        assert answers(client) == b"MSG a 1 2\r\nhi\r\n" * 3 + b"PONG\r\n"
