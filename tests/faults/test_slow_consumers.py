"""
Subscribers that cannot keep up.

Their publishers are slowed first; who does not read at all is cut off at a
bound of bytes or of time, is counted and is named in the log.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.faults.heartbeat import Heartbeat
from tests.servers import PENSTOCK, RawClient, ServerProcess, wait_until

MEGABYTE = 1024 * 1024
GROWTH_BYTES_MAX = 24 * MEGABYTE


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess(PENSTOCK, "http_port: -1, max_pending: 8MB") as server:
        yield server


def subscriber(port: int, *, sid: int = 1, receive_buffer: int = 65536) -> RawClient:
    client = RawClient(port, receive_buffer=receive_buffer)
    client.connect()
    client.send(b"SUB load %d\r\n" % sid)
    client.settle()
    return client


def payload(number: int) -> bytes:
    return b"%08d" % number * 128


def publish(port: int, count: int) -> None:
    """Publish numbered messages of a kilobyte; return once the server has read them all."""
    with RawClient(port) as client:
        client.connect()
        client.sock.settimeout(60)
        for start in range(0, count, 64):
            numbers = range(start, min(start + 64, count))
            client.send(b"".join(b"PUB load 1024\r\n%b\r\n" % payload(each) for each in numbers))
        client.settle()


def expected(sid: int, count: int) -> bytes:
    return b"".join(b"MSG load %d 1024\r\n%b\r\n" % (sid, payload(each)) for each in range(count))


@pytest.mark.parametrize(("pause_s", "count"), [(0.001, 48 * 1024), (0.02, 16 * 1024)])
def test_a_slow_but_steady_reader_gets_everything_because_its_publisher_is_slowed(
    server: ServerProcess, pause_s: float, count: int
) -> None:
    with subscriber(server.port) as reader, Heartbeat(server.port) as heartbeat:
        publisher = threading.Thread(target=publish, args=(server.port, count))
        publisher.start()
        received, missing = [], len(expected(1, 1)) * count
        while missing:
            # A pause between small reads is what makes this reader slow.
            publisher.join(pause_s)
            received.append(reader.read(min(missing, 64 * 1024)))
            missing -= len(received[-1])
        publisher.join()

    heartbeat.check()
    assert b"".join(received) == expected(1, count)
    varz = server.varz()
    assert varz["slow_consumers"] == 0
    assert varz["stalled_clients"] > 0


def test_a_reader_that_is_stuck_is_cut_off_at_max_pending(server: ServerProcess) -> None:
    count = 32 * 1024
    with subscriber(server.port, receive_buffer=4096), subscriber(server.port, sid=2) as good:
        received = []
        reader = threading.Thread(
            target=lambda: received.append(good.read(len(expected(2, 1)) * count))
        )
        reader.start()
        publish(server.port, count)
        reader.join()

        wait_until(lambda: server.varz()["slow_consumers"] == 1)

    assert received == [expected(2, count)]
    assert "Slow Consumer (Pending Bytes)" in server.log


def test_a_reader_that_is_stuck_is_cut_off_at_the_write_deadline() -> None:
    config = 'http_port: -1, write_deadline: "300ms"'
    with (
        ServerProcess(PENSTOCK, config) as server,
        subscriber(server.port, receive_buffer=4096),
        Heartbeat(server.port) as heartbeat,
    ):
        publish(server.port, 8 * 1024)

        wait_until(lambda: server.varz()["slow_consumers"] == 1)
        assert "Slow Consumer (Write Deadline)" in server.log

    heartbeat.check()


def test_a_reader_that_leaves_while_it_holds_up_its_publisher_sets_it_free(
    server: ServerProcess,
) -> None:
    with subscriber(server.port, receive_buffer=4096) as reader:
        publisher = threading.Thread(target=publish, args=(server.port, 32 * 1024))
        publisher.start()
        reader.read(MEGABYTE)

    publisher.join(20)
    assert not publisher.is_alive()


def test_many_sessions_with_sids_of_their_own_get_every_message(server: ServerProcess) -> None:
    count, sessions = 100, 300
    readers = [subscriber(server.port, sid=1000 + index) for index in range(sessions)]

    publish(server.port, count)

    for index, reader in enumerate(readers):
        wanted = expected(1000 + index, count)
        assert wanted == reader.read(len(wanted))
        reader.close()


def test_the_memory_of_a_burst_is_given_back() -> None:
    readers_count, count = 16, 4 * 1024
    with ServerProcess(PENSTOCK, "max_pending: 64MB") as server:
        readers = [
            subscriber(server.port, sid=sid, receive_buffer=4096) for sid in range(readers_count)
        ]
        before = server.resident_bytes

        publish(server.port, count)
        for sid, reader in enumerate(readers):
            wanted = expected(sid, count)
            assert wanted == reader.read(len(wanted))

        wait_until(lambda: server.resident_bytes - before < GROWTH_BYTES_MAX)
        for reader in readers:
            reader.close()
