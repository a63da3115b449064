"""Very many connections, and very many a second."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from tests.faults.heartbeat import Heartbeat
from tests.servers import (
    HOST,
    PENSTOCK,
    RawClient,
    ServerProcess,
    raise_open_files_limit,
    wait_until,
)

IDLE_CONNECTIONS = 10_000
BYTES_PER_CONNECTION_MAX = 6_000
GROWTH_BYTES_MAX = 12 * 1024 * 1024
GREETING = b'CONNECT {"verbose":false,"headers":true,"protocol":1,"name":"idle"}\r\nPING\r\n'


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with ServerProcess(PENSTOCK, "http_port: -1") as server:
        yield server


def open_idle(port: int, count: int) -> list[socket.socket]:
    """Return connections that have introduced themselves and been answered."""
    connections = [socket.create_connection((HOST, port)) for _ in range(count)]
    for connection in connections:
        connection.sendall(GREETING)
    for connection in connections:
        received = b""
        while b"PONG" not in received:
            received += connection.recv(4096)
    return connections


def close_all(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def test_ten_thousand_idle_connections_cost_little_and_leave_nothing_behind() -> None:
    limit = raise_open_files_limit()
    if limit < IDLE_CONNECTIONS + 200:
        pytest.skip(f"the system allows {limit} open files, {IDLE_CONNECTIONS} are needed")
    with ServerProcess(PENSTOCK, "http_port: -1") as server:
        before = server.resident_bytes

        connections = open_idle(server.port, IDLE_CONNECTIONS)
        during = server.resident_bytes
        with Heartbeat(server.port) as heartbeat:
            wait_until(lambda: len(heartbeat.round_trips_s) > 100)
        close_all(connections)
        wait_until(lambda: server.varz()["connections"] == 0)
        after = server.resident_bytes
        close_all(open_idle(server.port, IDLE_CONNECTIONS))
        wait_until(lambda: server.varz()["connections"] == 0)
        after_another_wave = server.resident_bytes

    heartbeat.check()
    assert (during - before) / IDLE_CONNECTIONS < BYTES_PER_CONNECTION_MAX
    assert after_another_wave - after < GROWTH_BYTES_MAX


def test_a_thousand_clients_come_and_go_in_a_second_of_work(server: ServerProcess) -> None:
    clients, threads = 2000, 4

    def come_and_go() -> None:
        for _ in range(clients // threads):
            with RawClient(server.port) as client:
                client.connect()

    workers = [threading.Thread(target=come_and_go) for _ in range(threads)]
    with Heartbeat(server.port) as heartbeat:
        before_s = server.cpu_s
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        worked_s = server.cpu_s - before_s

    heartbeat.check()
    wait_until(lambda: server.varz()["connections"] == 0)
    assert server.varz()["total_connections"] == clients + 1
    assert clients / worked_s > 1000


def test_connections_reset_before_they_are_accepted_do_no_harm(server: ServerProcess) -> None:
    with Heartbeat(server.port) as heartbeat:
        for _ in range(500):
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.connect((HOST, server.port))

        wait_until(lambda: len(heartbeat.round_trips_s) > 10)

    heartbeat.check()
    wait_until(lambda: server.varz()["connections"] == 0)
