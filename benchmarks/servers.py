"""Start a server on a free loopback port, read its version and memory, and stop it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.machine import process_cpu_s

HOST = "127.0.0.1"
START_SECONDS_MAX = 10
STOP_SECONDS_MAX = 3


class ServerError(Exception):
    """A server could not be started."""


@dataclass(frozen=True)
class Program:
    """A server program: its name in the report, and its command."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


class Server:
    """A server process, alive inside a `with` block."""

    def __init__(
        self, program: Program, *flags: str, start_seconds_max: float = START_SECONDS_MAX
    ) -> None:
        self.program = program
        self._start_seconds_max = start_seconds_max
        self.port = free_port()
        self._flags = flags

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="bench-")
        self._log = Path(self._directory.name, "server.log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self.program.command, "-a", HOST, "-p", str(self.port), *self._flags],
                env={**os.environ, **self.program.environment},
                cwd=self._directory.name,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # We handle Ctrl-C, not the server
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def resident_mb(self) -> float:
        """Return the resident memory of the process and its children."""
        return sum(_resident_kb(pid) for pid in _family(self._process.pid)) / 1024

    def cpu_s(self) -> float:
        """Return the processor time of the process and its children."""
        return sum(process_cpu_s(pid) for pid in _family(self._process.pid))

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_seconds_max
        while time.monotonic() < deadline and self._process.poll() is None:
            if _greets(self.port):
                return
            time.sleep(0.02)
        log = self._log.read_text(errors="replace").strip()
        raise ServerError(f"{self.program.name} did not start:\n{log[-2000:]}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._directory.cleanup()


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def find_command(name: str) -> str:
    """Return the path of a program next to this Python, or else on the PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise ServerError(f"`{name}` not found beside {sys.executable} nor on the PATH")
    return os.path.abspath(found)  # servers run in their own directory


def describe(program: Program) -> dict[str, Any]:
    """Start `program` with monitoring, and return its /varz."""
    monitor_port = free_port()
    with Server(program, "-m", str(monitor_port)):
        try:
            with urllib.request.urlopen(f"http://{HOST}:{monitor_port}/varz", timeout=3) as answer:
                varz: dict[str, Any] = json.load(answer)
                return varz
        except (OSError, ValueError):
            return {}


def _greets(port: int) -> bool:
    """Tell whether a server on `port` sends INFO, as NATS servers do first."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False


def _family(pid: int) -> list[int]:
    """Return `pid` and its descendants."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in task.read_text().split()
    ]
    return [pid, *(relative for child in children for relative in _family(child))]


def _resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) if found else 0
