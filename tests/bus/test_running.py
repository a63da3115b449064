"""A service that runs until it is told to stop, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.aio import until
from tests.conftest import Servers
from tests.servers import PROGRAMS, ServerProcess

from penstock.bus import Envelope, EventBus
from penstock.bus.testing import PenstockServer

SERVICE = Path(__file__).with_name("service.py")
WAIT_S = 40.0


@pytest.fixture
def server(servers: Servers) -> ServerProcess:
    return servers(PROGRAMS[0], "jetstream { store_dir: store }\n# of services")


@pytest.fixture
def namespace() -> str:
    """Return one that no other test has: they share a server."""
    return f"n{os.urandom(6).hex()}"


@contextmanager
def service(url: str, namespace: str, way: str, port: int = 0) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(SERVICE), url, namespace, str(port), way]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def publish(url: str, namespace: str, *seconds: float, key: str = "a") -> None:
    async def work() -> None:
        async with EventBus.open(url, namespace=namespace, service="clerk") as bus:
            for each in seconds:
                event = Envelope(aggregate_id=key, event_type="t", payload=each)
                await bus.publish_envelope_sync("orders", event)

    asyncio.run(work())


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_service_finishes_what_runs_and_ends(
    server: ServerProcess, namespace: str, sent: signal.Signals
) -> None:
    publish(server.url, namespace, 1.0, 0.0)
    with service(server.url, namespace, "plain") as process:
        assert "begin" == next_line(process)
        process.send_signal(sent)
        rest, log = process.communicate(timeout=WAIT_S)
    with service(server.url, namespace, "plain") as process:
        # What had not begun was given back.
        assert ["begin", "end"] == [next_line(process), next_line(process)]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)

    assert (0, ["end", "closed"]) == (process.returncode, rest.split()), log


def test_a_second_signal_ends_a_service_at_once(server: ServerProcess, namespace: str) -> None:
    publish(server.url, namespace, 3600.0)
    with service(server.url, namespace, "slow") as process:
        assert "begin" == next_line(process)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "the bus closes" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        assert -signal.SIGTERM == process.wait(WAIT_S)


def test_a_handler_that_exits_ends_a_service_once_the_others_have_finished(
    server: ServerProcess, namespace: str
) -> None:
    """It has an hour to close, so that nothing but the end of its handlers ends it."""
    publish(server.url, namespace, 1.0, key="b")
    with service(server.url, namespace, "exit") as process:
        assert "begin" == next_line(process)
        publish(server.url, namespace, 0.0, 0.0)
        rest, log = process.communicate(timeout=WAIT_S)

    assert (3, ["begin", "end"]) == (process.returncode, rest.split()), log
    assert "Task " not in log


@pytest.mark.parametrize("way", ["stubborn", "thread"])
def test_no_handler_keeps_a_service_from_ending(
    server: ServerProcess, namespace: str, way: str
) -> None:
    publish(server.url, namespace, 3600.0)
    with service(server.url, namespace, way) as process:
        assert "begin" == next_line(process)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=WAIT_S)

    assert 1 == process.returncode
    assert "the handler `handle" in log
    assert "does not end" in log


def test_a_service_is_alive_before_it_is_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    def answers(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    server = PenstockServer(tmp_path)
    with server:
        url = server.url
    with service(url, "events", "plain", port) as process:
        asyncio.run(until(lambda: answers("/live") == 200, WAIT_S))
        assert 503 == answers("/ready")
        with server:
            asyncio.run(until(lambda: answers("/ready") == 200, WAIT_S))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)

    assert 0 == process.returncode


def test_a_service_that_waits_for_its_server_can_be_stopped(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"nats://127.0.0.1:{probe.getsockname()[1]}"
    with service(url, "events", "plain") as process:
        assert process.stderr is not None
        while "`connect_timeout`" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=WAIT_S)

    assert (0, "closed") == (process.returncode, rest.strip())
