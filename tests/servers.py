"""
Servers under test, and the plainest of clients.

`PROGRAMS` are Penstock and the real nats-server. Both take the same flags, the same
configuration and the same tests, so whatever a test says is said of both.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from penstock.net import process
from penstock.net.process import HOST, Program

DEADLINE_S = 10.0
"""How long a test waits for what must happen before it says that it did not."""
START_S = float(os.environ.get("START_S", "60"))
"""How long a server may take to start on a machine that has other things to do."""


def _beside_python(name: str) -> str:
    return str(Path(sys.executable).parent / name)


PENSTOCK = Program("penstock", (_beside_python("penstock"), "serve"))
NATS_SERVER = Program("nats-server", (_beside_python("nats-server"),))
PROGRAMS = (PENSTOCK, NATS_SERVER)


RELOADED = re.compile("Reloaded server configuration|Failed to reload")
"""What either server logs when it is done with a reload."""


class ServerProcess(process.ServerProcess):
    """A server with what only tests ask of it."""

    def __init__(self, program: Program, config: str = "", *flags: str) -> None:
        super().__init__(program, config, *flags, start_timeout_s=START_S)

    def start_again(self) -> None:
        """Start it on its port, with what it had stored in its directory, after it was killed."""
        self.process.wait()
        self.start()

    @property
    def http_port(self) -> int:
        """The port of its monitoring, which needs `http_port: -1` in the configuration."""
        found = re.search(r"Starting http monitor on \S+:(\d+)", self.log)
        assert found is not None
        return int(found[1])

    @property
    def websocket_port(self) -> int:
        """The port of its WebSocket listener, if it has one."""
        found = re.search(r"Listening for websocket clients on wss?://\S+:(\d+)", self.log)
        assert found is not None
        return int(found[1])

    def url_of(self, transport: str) -> str:
        """Return where clients reach it by `nats`, `tls`, `ws` or `wss`."""
        port = self.websocket_port if transport.startswith("ws") else self.port
        return f"{transport}://localhost:{port}"

    def varz(self) -> dict[str, Any]:
        """Return what its monitoring says."""
        with urllib.request.urlopen(f"http://{HOST}:{self.http_port}/varz") as answer:
            varz: dict[str, Any] = json.load(answer)
        return varz

    def reload(self, config: str) -> None:
        """Give it another configuration, and return once it has taken it over or refused to."""
        seen = len(RELOADED.findall(self.log))
        self.write_config(config)
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(RELOADED.findall(self.log)) > seen)

    def write_config(self, config: str) -> None:
        """Write another configuration, without a word to the server."""
        (self.directory / "server.conf").write_text(config)


class RawClient:
    """A socket to a server, with lines instead of bytes. It answers no PING by itself."""

    def __init__(self, port: int, *, host: str = HOST, receive_buffer: int = 0) -> None:
        self.sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(DEADLINE_S)
        self._received = b""
        try:
            self.sock.connect((host, port))
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.info: dict[str, Any] = json.loads(self.line().removeprefix(b"INFO "))
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self.sock.close()

    def connect(self, **options: Any) -> Self:
        """Say CONNECT, and return once the server has taken note of it."""
        options = {"verbose": False, "headers": True, "no_responders": True} | options
        self.send(b"CONNECT %b\r\n" % json.dumps(options).encode())
        self.settle()
        return self

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.sock.sendall(data)

    def settle(self) -> list[bytes]:
        """Return the lines that the server sent before it answered a PING of ours."""
        self.send(b"PING\r\n")
        lines = []
        while (line := self.line()) != b"PONG":
            lines.append(line)
        return lines

    @property
    def has_more(self) -> bool:
        """Whether something was received that nobody has read yet."""
        return bool(self._received)

    def line(self) -> bytes:
        """Return the next line without its CRLF."""
        while b"\r\n" not in self._received:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError(self._received)
            self._received += data
        line, _, self._received = self._received.partition(b"\r\n")
        return line

    def read(self, size: int) -> bytes:
        """Return so many bytes."""
        pieces, missing = [self._received], size - len(self._received)
        while missing > 0:
            data = self.sock.recv(min(missing, 1 << 20))
            if not data:
                raise EOFError(b"".join(pieces))
            pieces.append(data)
            missing -= len(data)
        received = b"".join(pieces)
        self._received = received[size:]
        return received[:size]

    def rest(self) -> list[bytes]:
        """Return the lines up to the moment the server closes the connection."""
        lines = []
        while True:
            try:
                lines.append(self.line())
            except (EOFError, ConnectionResetError):
                return lines


def wait_until(condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> None:
    """Return once the condition is true; fail when it does not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {timeout_s:g} s"
        time.sleep(0.005)


def raise_open_files_limit() -> int:
    """Raise the limit of open files of this process and its children to come, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
