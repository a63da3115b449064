"""Two servers, of which one copies streams of the other; either can be killed and come back."""

from __future__ import annotations

import base64
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from tests.servers import HOST, PENSTOCK, Program, RawClient, ServerProcess, wait_until

from penstock.net.process import free_ports
from penstock.protocol import headers

CAUGHT_UP_S = 30.0
"""A copy may be waiting for its next attempt, and the machine may be slow."""


class Server:
    """A server that keeps its port and its streams over restarts."""

    def __init__(self, program: Program, directory: Path, config: str = "") -> None:
        self.program = program
        (self.port,) = free_ports(1)
        self.config = config or f'jetstream {{ store_dir: "{directory}" }}'
        self.login: dict[str, str] = {}
        self._process: ServerProcess | None = None

    def start(self) -> Self:
        self._process = ServerProcess(self.program, self.config, "-p", str(self.port))
        self._process.__enter__()
        return self

    def kill(self) -> None:
        """End it without a warning."""
        if self._process is not None:
            self._process.__exit__()
            self._process = None

    def stop(self) -> None:
        """End it in order."""
        assert self._process is not None
        self._process.signal(signal.SIGTERM)
        self._process.process.wait(CAUGHT_UP_S)
        self.kill()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    @property
    def http_port(self) -> int:
        assert self._process is not None
        return self._process.http_port

    @property
    def log(self) -> str:
        assert self._process is not None
        return self._process.log

    @contextmanager
    def client(self) -> Iterator[RawClient]:
        with RawClient(self.port) as raw:
            yield raw.connect(**self.login)

    def call(self, name: str, /, **fields: Any) -> dict[str, Any]:
        """Make an API call and return the answer."""
        body = json.dumps(fields).encode() if fields else b""
        with self.client() as raw:
            raw.send(
                b"SUB _INBOX.x 1\r\nPUB $JS.API.%b _INBOX.x %d\r\n" % (name.encode(), len(body))
            )
            raw.send(body + b"\r\n")
            answer: dict[str, Any] = json.loads(_message(raw)[1])
            return answer

    def create(self, name: str, **fields: Any) -> dict[str, Any]:
        answer = self.call(f"STREAM.CREATE.{name}", name=name, **fields)
        assert "error" not in answer, answer
        return answer

    def publish(self, subject: str, first: int, last: int, *, size: int = 0) -> None:
        """Publish numbers, and return once all are stored."""
        with self.client() as raw:
            raw.send(b"SUB _INBOX.x 1\r\n")
            for start in range(first, last + 1, 1000):
                numbers = range(start, min(start + 1000, last + 1))
                for number in numbers:
                    payload = b"%d" % number
                    payload += b" " * (size - len(payload))
                    line = b"PUB %b _INBOX.x %d\r\n" % (subject.encode(), len(payload))
                    raw.send(line + payload + b"\r\n")
                for _ in numbers:
                    assert b'"seq"' in _message(raw)[1]

    def state(self, stream: str) -> dict[str, Any]:
        state: dict[str, Any] = self.info(stream)["state"]
        return state

    def info(self, stream: str) -> dict[str, Any]:
        answer = self.call(f"STREAM.INFO.{stream}")
        assert "error" not in answer, answer
        return answer

    def origin(self, stream: str) -> dict[str, Any]:
        """Return what a copy says of its only origin."""
        info = self.info(stream)
        told: dict[str, Any] = info["mirror"] if "mirror" in info else info["sources"][0]
        return told

    def messages(self, stream: str) -> list[tuple[int, str, bytes]]:
        """Return sequence, subject and payload of all messages."""
        return [each[:3] for each in self.contents(stream)]

    def contents(self, stream: str) -> list[tuple[int, str, bytes, str, dict[str, str]]]:
        """Return sequence, subject, payload, time and headers of all messages."""
        state = self.state(stream)
        if not state["messages"]:
            return []
        found = []
        with self.client() as raw:
            raw.send(b"SUB _INBOX.x 1\r\n")
            for sequence in range(state["first_seq"], state["last_seq"] + 1):
                body = b'{"seq":%d}' % sequence
                raw.send(b"PUB $JS.API.STREAM.MSG.GET.%b _INBOX.x %d\r\n%b\r\n"
                         % (stream.encode(), len(body), body))  # fmt: skip
                answer = json.loads(_message(raw)[1])
                if "message" in answer:
                    found.append(_content(answer["message"]))
        return found

    def wait_for(self, stream: str, **state: Any) -> None:
        """Return once the state of a stream says so."""
        deadline = time.monotonic() + CAUGHT_UP_S
        while not state.items() <= (now := self.state(stream)).items():
            assert time.monotonic() < deadline, (now, self.info(stream))
            time.sleep(0.02)

    def consumer_names(self, stream: str) -> list[str]:
        """Return the consumers of a stream, those too that serve other streams."""
        names: list[str] = self.call(f"CONSUMER.NAMES.{stream}")["consumers"]
        return names


class Pair:
    """An origin and a copy, which knows the origin as `hub`."""

    def __init__(self, program: Program, directory: Path, *, more: str = "") -> None:
        self.origin = Server(program, directory / "origin")
        remote = f'{{ name: hub, urls: ["{self.origin.url}"], {more} }}'
        config = f'jetstream {{ store_dir: "{directory / "copy"}", remotes [ {remote} ] }}'
        self.copy = Server(PENSTOCK, directory, config)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            for server in (self.origin, self.copy):
                self._stack.callback(server.kill)
                server.start()
            # Whoever starts stops: if one of them does not start, the other must not stay.
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def clear(self) -> None:
        """Have both run, without streams."""
        for server in (self.copy, self.origin):
            if not server.is_running:
                server.start()
            for name in server.call("STREAM.NAMES").get("streams") or ():
                assert server.call(f"STREAM.DELETE.{name}")["success"]

    def wait_until_caught_up(self, copy: str, origin: str) -> None:
        """Return once a mirror has everything that its origin has."""
        wanted = self.origin.state(origin)
        keys = ("messages", "first_seq", "last_seq")
        self.copy.wait_for(copy, **{key: wanted[key] for key in keys})


def external(**more: str) -> dict[str, str]:
    return {"api": "$JS.hub.API", "deliver": ""} | more


def wait_for_error(server: Server, stream: str, text: str) -> None:
    """Return once a copy says what is wrong with its origin."""
    wait_until(
        lambda: text in server.origin(stream).get("error", {}).get("description", ""), CAUGHT_UP_S
    )


def _content(message: dict[str, Any]) -> tuple[int, str, bytes, str, dict[str, str]]:
    block = base64.b64decode(message.get("hdrs", ""))
    payload = base64.b64decode(message.get("data", "")).strip()
    found = dict(headers.decode(block))
    return message["seq"], message["subject"], payload, message["time"], found


def _message(raw: RawClient) -> tuple[bytes, bytes]:
    """Return header block and payload of the next message."""
    while True:
        fields = raw.line().split()
        if fields[0] in (b"MSG", b"HMSG"):
            header_bytes = int(fields[-2]) if fields[0] == b"HMSG" else 0
            data = raw.read(int(fields[-1]) + 2)[:-2]
            return data[:header_bytes], data[header_bytes:]
