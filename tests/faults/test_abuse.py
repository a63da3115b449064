"""Clients that do what no client should: the server lives, and the others notice nothing."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.faults.heartbeat import Heartbeat
from tests.servers import HOST, PENSTOCK, RawClient, ServerProcess, wait_until

CONFIG = 'http_port: -1, max_pending: 8MB, write_deadline: "500ms"'
GROWTH_BYTES_MAX = 24 * 1024 * 1024
MEGABYTE = 1024 * 1024
RESET_ON_CLOSE = b"\1\0\0\0\0\0\0\0"


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess(PENSTOCK, CONFIG) as server:
        yield server


def vanish_in_a_payload(port: int) -> None:
    """Two hundred clients vanish in the middle of a large message."""
    for _ in range(200):
        with RawClient(port) as client:
            client.connect()
            client.send(b"PUB heartbeat %d\r\n" % MEGABYTE + bytes(MEGABYTE // 2))
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)


def stay_in_a_payload(port: int) -> None:
    """Fifty clients send half of a large message each, and hold their connections."""
    clients = [RawClient(port).connect() for _ in range(50)]
    for client in clients:
        client.send(b"PUB heartbeat %d\r\n" % MEGABYTE + bytes(MEGABYTE // 2))
    for client in clients:
        client.close()


def vanish_in_a_line(port: int) -> None:
    """Five hundred clients send a protocol line byte by byte, and not to its end."""
    for _ in range(500):
        with RawClient(port) as client:
            for byte in b"PUB heartbe":
                client.send(bytes([byte]))


def send_garbage(port: int) -> None:
    """Five hundred clients send random bytes."""
    rng = random.Random(2)
    for _ in range(500):
        with RawClient(port) as client:
            send_anyway(client, rng.randbytes(rng.randrange(1, 5000)))
            client.rest()


def send_garbage_that_starts_well(port: int) -> None:
    """Five hundred clients send broken versions of a good conversation."""
    rng = random.Random(3)
    good = (
        b'CONNECT {"verbose":false}\r\nSUB a.> 1\r\nPUB a.b c 5\r\nhello\r\nUNSUB 1 2\r\nPING\r\n'
    )
    for _ in range(500):
        broken = bytearray(good)
        for _ in range(3):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        with RawClient(port) as client:
            send_anyway(client, bytes(broken))
            client.sock.shutdown(socket.SHUT_WR)
            client.rest()


def never_read(port: int) -> None:
    """Twenty clients subscribe to a flood and never read a byte of it."""
    deaf = [RawClient(port, receive_buffer=4096) for _ in range(20)]
    for client in deaf:
        client.connect()
        client.send(b"SUB flood %d\r\n" % client.info["client_id"])
        client.settle()
    message = b"PUB flood 65536\r\n" + bytes(65536) + b"\r\n"
    with RawClient(port) as publisher:
        publisher.connect()
        for _ in range(40):
            publisher.send(message * 16)
            publisher.settle()
    for client in deaf:
        client.close()


def never_read_pongs(port: int) -> None:
    """Ten clients ask for answers as fast as they can, and never take one."""

    def ask() -> None:
        with RawClient(port, receive_buffer=4096) as client:
            client.connect()
            client.sock.settimeout(0.5)
            try:
                for _ in range(200):
                    client.send(b"PING\r\n" * 10_000)
            except OSError:
                """Cut off, or held back because it does not read."""

    run_together([ask] * 10)


def flood(port: int) -> None:
    """Four clients publish small messages to nobody, as fast as the server takes them."""
    burst = b"PUB nobody 16\r\n0123456789abcdef\r\n" * 2000

    def publish() -> None:
        with RawClient(port) as client:
            client.connect()
            for _ in range(300):
                client.send(burst)
            client.settle()

    run_together([publish] * 4)


def subscribe_without_end(port: int) -> None:
    """Four clients come and go with ten thousand subscriptions each."""
    subscriptions = b"".join(b"SUB inbox.%d.* %d\r\n" % (sid, sid) for sid in range(10_000))

    def subscribe() -> None:
        with RawClient(port) as client:
            client.connect()
            client.send(subscriptions)
            client.settle()

    run_together([subscribe] * 4)


def send_anyway(client: RawClient, data: bytes) -> None:
    """Send, although the server may have hung up already."""
    try:
        client.send(data)
    except OSError:
        """It has."""


def run_together(actions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=action) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ABUSES = [
    vanish_in_a_payload,
    stay_in_a_payload,
    vanish_in_a_line,
    send_garbage,
    send_garbage_that_starts_well,
    never_read,
    never_read_pongs,
    flood,
    subscribe_without_end,
]


@pytest.mark.parametrize("abuse", ABUSES)
def test_abuse_harms_nobody_else(abuse: Callable[[int], None], server: ServerProcess) -> None:
    before = server.resident_bytes
    with Heartbeat(server.port) as heartbeat:
        abuse(server.port)

    heartbeat.check()
    wait_until(lambda: server.varz()["connections"] == 0)
    wait_until(lambda: server.resident_bytes - before < GROWTH_BYTES_MAX)
    assert "internal error" not in server.log
    assert "Traceback" not in server.log


def test_a_client_may_send_its_messages_byte_by_byte(server: ServerProcess) -> None:
    with socket.create_connection((HOST, server.port)) as slow, Heartbeat(server.port) as heartbeat:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"SUB a 1\r\nPUB a 5\r\nhello\r\nPING\r\n":
            slow.sendall(bytes([byte]))
        received = b""
        while not received.endswith(b"PONG\r\n"):
            received += slow.recv(4096)
        wait_until(lambda: len(heartbeat.round_trips_s) > 10)

    heartbeat.check()
    assert received.endswith(b"+OK\r\n+OK\r\nMSG a 1 5\r\nhello\r\nPONG\r\n")
