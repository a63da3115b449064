"""A server as a process: it starts, is measured, is killed and comes back, or says why not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.net import process
from penstock.net.process import (
    PENSTOCK,
    Program,
    ServerFailed,
    ServerProcess,
    cpu_s,
    family,
    find_command,
    resident_bytes,
    version_in,
)

NATS_SERVER = Program("nats-server", ("nats-server",))
SLEEPER = "import sys, time; print(flush=True); time.sleep(600)"
START_S = 60.0
PENSTOCK_LOG = """\
[1] 2026/01/01 00:00:00.000000 [INF] Starting penstock
[1] 2026/01/01 00:00:00.000000 [INF]   Version:  0.1.0 (speaks NATS 2.10.0)
[1] 2026/01/01 00:00:00.000000 [INF]   Hot path: compiled
"""
NATS_LOG = """\
[1] 2026/01/01 00:00:00.000000 [INF] Starting nats-server
[1] 2026/01/01 00:00:00.000000 [INF]   Version:  2.15.1
"""


@pytest.mark.parametrize(
    ("log", "version"),
    [(PENSTOCK_LOG, "penstock 0.1.0, compiled"), (NATS_LOG, "nats-server 2.15.1"), ("", "")],
)
def test_a_server_is_called_what_it_says_it_is(log: str, version: str) -> None:
    assert version_in(log) == version


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ServerFailed, match="`no-such-server` was not found"):
        find_command("no-such-server")


@pytest.mark.parametrize("program", [PENSTOCK, NATS_SERVER], ids=lambda program: program.name)
def test_a_killed_server_comes_back_on_its_port(program: Program) -> None:
    with ServerProcess(program, start_timeout_s=START_S) as server:
        port, pid = server.port, server.pid
        server.restart()

        assert (server.port, server.is_running) == (port, True)
        assert server.pid != pid
        assert server.version.startswith(program.name)
        assert server.resident_bytes > 1_000_000
    assert not server.is_running
    assert not server.directory.exists()


def test_a_configuration_written_meanwhile_counts_at_the_next_start() -> None:
    with ServerProcess(PENSTOCK, "server_name: name_before", start_timeout_s=START_S) as server:
        (server.directory / "server.conf").write_text("server_name: name_after")
        server.restart()

        assert "name_after" in server.log
        assert "name_before" not in server.log


def test_a_server_that_does_not_start_says_what_it_logged() -> None:
    with pytest.raises(ServerFailed, match=r"penstock did not start:\n(.|\n)*no_such_setting"):
        with ServerProcess(PENSTOCK, "no_such_setting: true", start_timeout_s=START_S):
            pass


def test_a_directory_of_the_caller_stays(tmp_path: Path) -> None:
    with ServerProcess(PENSTOCK, directory=tmp_path, start_timeout_s=START_S) as server:
        server.stop()

        assert not server.is_running
    assert (tmp_path / "server.log").exists()


@pytest.fixture
def parent() -> Iterator[int]:
    """Return a process with a child."""
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPER!r}])"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        os.killpg(process.pid, 9)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not tell")
def test_a_family_is_a_process_and_its_descendants(parent: int) -> None:
    first, *children = family(parent)

    assert first == parent
    assert len(children) == 1


def test_a_process_that_worked_took_time_and_memory() -> None:
    assert cpu_s(os.getpid()) > 0
    assert resident_bytes(os.getpid()) > 1_000_000


def test_a_process_that_is_gone_takes_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()

    assert (cpu_s(process.pid), resident_bytes(process.pid)) == (0.0, 0)


def test_programs_can_be_keys_whatever_their_environment() -> None:
    pure = Program(PENSTOCK.name, PENSTOCK.command, {"PENSTOCK_PURE": "1"})

    assert {PENSTOCK: 1, pure: 2}[pure] == 2


def test_a_port_that_somebody_has_is_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = process.free_ports(2)
    monkeypatch.setattr(process, "PORTS", (first, second))
    with socket.socket() as taken:
        taken.bind((process.HOST, first))

        assert process.free_ports(1) == [second]
