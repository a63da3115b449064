"""The servers to measure: those that the bench starts itself, and any with a URL."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from penstock.client import connect
from penstock.errors import ConfigError, PenstockError
from penstock.protocol.redaction import redact
from penstock.protocol.suggestions import nearest

HOST = "127.0.0.1"
START_S_MAX = 15.0
STOP_S_MAX = 5.0
LISTENING = re.compile(r"Listening for client connections on \S+:(\d+)")
READY = "Server is ready"


@dataclass(frozen=True)
class Program:
    """A server that the bench can start."""

    name: str
    doc: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    jetstream: str = ""
    """Further settings of the `jetstream` block."""


PROGRAMS = {
    program.name: program
    for program in (
        Program("penstock", "this Penstock", (sys.executable, "-m", "penstock", "serve")),
        Program(
            "penstock-pure",
            "this Penstock without its compiled hot path",
            (sys.executable, "-m", "penstock", "serve"),
            {"PENSTOCK_PURE": "1"},
        ),
        Program("nats", "nats-server, found beside this Python or on the PATH", ("nats-server",)),
        Program(
            "nats-sync",
            "nats-server configured to sync every message before its ack, as Penstock does",
            ("nats-server",),
            jetstream="sync_interval: always",
        ),
    )
}


def parse(text: str) -> list[str]:
    """Return the servers of a comma-separated list; raise for an unknown one."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PROGRAMS and "://" not in name:
            meant = nearest(name, PROGRAMS)
            hint = f"did you mean `{meant}`?" if meant else f"{', '.join(PROGRAMS)} or a URL"
            raise ConfigError(f"there is no server `{name}`; hint: {hint}")
    return names


def open_server(name: str, *, jetstream: bool) -> AbstractContextManager[Started | Remote]:
    """Return the server with this name: started for a `with` block, or remote."""
    if "://" in name:
        return Remote(name)
    return Started(PROGRAMS[name], jetstream=jetstream)


class Remote:
    """A server that somebody else runs."""

    def __init__(self, url: str) -> None:
        self.name = redact(url)
        self.url = url
        self.version = ""

    def __enter__(self) -> Self:
        self.version = asyncio.run(_version(self.url))
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the server as it is."""

    def resident_bytes(self) -> int | None:
        """Return None: its process is not ours."""
        return None


class Started:
    """A server process on a free loopback port, alive inside a `with` block."""

    def __init__(self, program: Program, *, jetstream: bool) -> None:
        self.name = program.name
        self.url = ""
        self.version = ""
        self._program = program
        self._jetstream = jetstream

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        try:
            self._start()
        except BaseException:
            self._directory.cleanup()
            raise
        try:
            log = self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        self.url = f"nats://{HOST}:{LISTENING.findall(log)[0]}"
        self.version = version_in(log)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        return self._process.pid

    def resident_bytes(self) -> int | None:
        """Return the resident memory of its process."""
        return resident_bytes(self._process.pid)

    def _start(self) -> None:
        home = Path(self._directory.name)
        config = home / "server.conf"
        config.write_text(self._config(home), encoding="utf-8")
        self._log = home / "server.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*find_command(self._program), "-a", HOST, "-p", "-1", "-c", str(config)],
                env={**os.environ, **self._program.environment},
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # We handle Ctrl-C, not the server.
            )

    def _config(self, home: Path) -> str:
        if not self._jetstream:
            return ""
        settings = f'store_dir: "{home / "jetstream"}"\n{self._program.jetstream}'
        return f"jetstream {{\n{settings}\n}}\n"

    def _wait_until_ready(self) -> str:
        """Wait until the server accepts clients, and return its log."""
        deadline_s = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline_s and self._process.poll() is None:
            log = self._log.read_text(errors="replace")
            if READY in log:
                return log
            time.sleep(0.01)
        lines = self._log.read_text(errors="replace").strip().splitlines()
        raise ServerFailed(f"{self.name} did not start: {lines[-1] if lines else 'no log'}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._directory.cleanup()


class ServerFailed(PenstockError):
    """A server could not be started."""


def find_command(program: Program) -> tuple[str, ...]:
    """Return the command of a program: next to this Python first, then on the PATH."""
    name, *arguments = program.command
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ServerFailed(f"`{name}` was not found; hint: pip install {name}-bin")
    return (os.path.abspath(found), *arguments)


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process, from the system or from `ps`."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else None
    except OSError:
        asked = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return int(asked.stdout) * 1024 if asked.stdout.strip() else None


def version_in(log: str) -> str:
    """Return the version that a server logs at its start."""
    name = re.search(r"Starting (\S+)", log)
    version = re.search(r"Version:\s+(\S+)", log)
    hot_path = re.search(r"Hot path:\s+(.+)", log)
    words = " ".join(found[1] for found in (name, version) if found)
    return f"{words}, {hot_path[1].strip()}" if hot_path else words


async def _version(url: str) -> str:
    """Return the version that a server announces to clients."""
    async with await connect(url) as client:
        if client.info.get("go", "").startswith("python"):
            return f"penstock, speaks NATS {client.info['version']}"
        return f"nats-server {client.info['version']}"
