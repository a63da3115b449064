"""
A server as a process of its own, for tests, demos and measurements.

Penstock or nats-server: both take the same flags and configuration, and log the same lines.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from penstock.errors import PenstockError

HOST = "127.0.0.1"
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.01
READY = "Server is ready"
LISTENING = re.compile(r"Listening for client connections on \S+:(\d+)")
LOG_LINES_SHOWN = 20
PORTS = range(20_000, 32_000)
"""Ports that systems give to no outgoing connection, which could take one before its server."""


class ServerFailed(PenstockError):
    """A server could not be started."""


@dataclass(frozen=True)
class Program:
    """A server that can be started: its name in reports, its command and its environment."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)


PENSTOCK = Program("penstock", (sys.executable, "-m", "penstock", "serve"))


class ServerProcess:
    """
    A server on a free loopback port, alive inside a `with` block.

    It can be killed and started again on the same port and in the same directory, which is
    temporary unless you name one.
    """

    def __init__(
        self,
        program: Program,
        config: str = "",
        *flags: str,
        directory: str | Path | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        own_session: bool = False,
    ) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes]
        self.port = 0
        self._config = config
        self._flags = flags
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="penstock-")
            directory = self._temporary.name
        self.directory = Path(directory)
        self._start_timeout_s = start_timeout_s
        self._own_session = own_session
        """Whether Ctrl-C on the terminal leaves it alone: then its parent decides when to stop."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def name(self) -> str:
        """The name of its program."""
        return self.program.name

    @property
    def url(self) -> str:
        """Where clients connect to; the same after a restart."""
        return f"nats://{HOST}:{self.port}"

    @property
    def log(self) -> str:
        """The log since its last start."""
        path = self.directory / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def version(self) -> str:
        """The name and the version that it logs at its start."""
        return version_in(self.log)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has not ended yet."""
        process = getattr(self, "process", None)
        return process is not None and process.poll() is None

    @property
    def resident_bytes(self) -> int:
        """The resident memory of its process and the children of that."""
        return sum(map(resident_bytes, family(self.pid)))

    @property
    def cpu_s(self) -> float:
        """The processor time of its process and the children of that."""
        return sum(map(cpu_s, family(self.pid)))

    def start(self) -> None:
        """Start it, on the port and with the streams it had before."""
        assert not self.is_running, "it runs already"
        config = self.directory / "server.conf"
        if not self.port:
            config.write_text(self._config, encoding="utf-8")
        with (self.directory / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *command_of(self.program),
                    *("-a", HOST, "-p", str(self.port or -1), "-c", str(config)),
                    *self._flags,
                ],
                env={**os.environ, **self.program.environment},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=self._own_session,
            )
        try:
            self.port = self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Shut it down in good order; kill it if that takes too long."""
        self.signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it, as a crash would. What was acked is on the disk."""
        if self.is_running:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def _wait_until_ready(self) -> int:
        deadline_s = time.monotonic() + self._start_timeout_s
        while READY not in self.log:
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                lines = self.log.strip().splitlines()[-LOG_LINES_SHOWN:] or ["it logged nothing"]
                raise ServerFailed("\n".join([f"{self.name} did not start:", *lines]))
            time.sleep(POLL_S)
        found = LISTENING.search(self.log)
        assert found is not None, self.log
        return int(found[1])


def command_of(program: Program) -> tuple[str, ...]:
    """Return the command of a program, with the path of its executable."""
    name, *arguments = program.command
    return find_command(name), *arguments


def find_command(name: str) -> str:
    """Return the path of an executable: next to this Python first, then on the PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ServerFailed(f"`{name}` was not found; hint: pip install {name}-bin")
    return os.path.abspath(found)  # A server runs in a directory of its own.


def version_in(log: str) -> str:
    """Return the name and the version that a server logs at its start."""
    name = re.search(r"Starting (\S+)", log)
    version = re.search(r"Version:\s+(\S+)", log)
    hot_path = re.search(r"Hot path:\s+(.+)", log)
    words = " ".join(found[1] for found in (name, version) if found)
    return f"{words}, {hot_path[1].strip()}" if hot_path else words


def family(pid: int) -> list[int]:
    """Return a process and its descendants, parents first, where the system shows them."""
    found = [pid]
    # A program may start children from any of its threads.
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue  # The thread has just ended.
        found += [each for child in children for each in family(int(child))]
    return found


def cpu_s(pid: int) -> float:
    """Return the processor time of a process; 0 if it is gone, or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, from the system or from `ps`; 0 if it is gone."""
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0
    except OSError:
        command = ["ps", "-o", "rss=", "-p", str(pid)]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        return int(asked.stdout.strip() or 0) * 1024


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has, for servers that must know theirs before they start."""
    found: set[int] = set()
    while len(found) < count:
        port = random.choice(PORTS)
        if _is_free(port):
            found.add(port)
    return list(found)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
