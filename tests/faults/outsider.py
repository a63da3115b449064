"""
A client of the fault suites' own: one socket, and what the protocol documents say.

It shares nothing with the clients of Penstock, so what it sees is what is on the wire.
It waits in one thread, and a server that was killed under it is `Gone`.
"""

from __future__ import annotations

import itertools
import json
import select
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from tests.servers import RawClient, ServerProcess

PATIENCE_S = 30.0
"""How long something may take that must happen, on a busy machine."""
GONE = (EOFError, ConnectionError)


class Told(NamedTuple):
    """One message as it came."""

    subject: str
    reply: str
    status: str
    headers: dict[str, str]
    payload: bytes

    @property
    def sequence(self) -> int:
        """Its place in the stream, of a message that a consumer delivered."""
        return int(self.reply.split(".")[5])

    @property
    def deliveries(self) -> int:
        """How often it was delivered, this time too."""
        return int(self.reply.split(".")[4])


class Outsider:
    """One connection. Used in a `with` block."""

    def __init__(self, server: ServerProcess) -> None:
        self._raw = RawClient(server.port).connect()
        self._raw.sock.settimeout(PATIENCE_S)
        self._numbers = itertools.count(1)
        self._inbox = f"_INBOX.{id(self)}"
        self._came: deque[Told] = deque()
        self.subscribe(f"{self._inbox}.*")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def inbox(self) -> str:
        """Return a subject that only this client listens to, and nobody had before."""
        return f"{self._inbox}.{next(self._numbers)}"

    def subscribe(self, subject: str, queue: str = "") -> int:
        """Listen; return the id of the subscription."""
        sid = next(self._numbers)
        self._raw.send(f"SUB {subject} {queue} {sid}\r\n".encode())
        return sid

    def unsubscribe(self, sid: int) -> None:
        """Listen no more."""
        self._raw.send(b"UNSUB %d\r\n" % sid)

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one message, and wait for nothing."""
        if not headers:
            head = f"PUB {subject} {reply} {len(payload)}\r\n".encode()
            self._raw.send(head + payload + b"\r\n")
            return
        lines = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
        block = f"NATS/1.0\r\n{lines}\r\n".encode()
        head = f"HPUB {subject} {reply} {len(block)} {len(block) + len(payload)}\r\n".encode()
        self._raw.send(head + block + payload + b"\r\n")

    def request(
        self, subject: str, payload: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Told:
        """Return the answer to a request; whatever else comes meanwhile waits."""
        inbox = self.inbox()
        self.publish(subject, payload, reply=inbox, headers=headers)
        return self.answer(inbox)

    def answer(self, inbox: str) -> Told:
        """Return what comes to an inbox; whatever else comes meanwhile waits."""
        kept: deque[Told] = deque()
        try:
            while True:
                told = self._came.popleft() if self._came else self._read()
                if told.subject == inbox:
                    return told
                kept.append(told)
        finally:
            self._came.extendleft(reversed(kept))

    def call(self, name: str, /, **fields: Any) -> dict[str, Any]:
        """Return the answer of the JetStream API, an error too."""
        body = json.dumps(fields).encode() if fields else b""
        document: dict[str, Any] = json.loads(self.request(f"$JS.API.{name}", body).payload)
        return document

    def do(self, name: str, /, **fields: Any) -> dict[str, Any]:
        """Make a call that must work."""
        document = self.call(name, **fields)
        assert "error" not in document, (name, document)
        return document

    def store(self, subject: str, payload: bytes = b"", **headers: str) -> int:
        """Return the sequence of a message that was stored; header names have `_` for `-`."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        document = json.loads(self.request(subject, payload, named).payload)
        assert "error" not in document, document
        return int(document["seq"])

    def next(self, wait_s: float = 0.0) -> Told | None:
        """Return the next message that comes within a time, or none."""
        deadline_s = time.monotonic() + wait_s
        while not self._came:
            left_s = max(deadline_s - time.monotonic(), 0)
            if not self._raw.has_more and not select.select([self._raw.sock], [], [], left_s)[0]:
                return None
            self._take(self._raw.line())
        return self._came.popleft()

    def wait(self) -> Told:
        """Return the next message, which must come."""
        told = self.next(PATIENCE_S)
        assert told is not None, f"nothing came within {PATIENCE_S:g} s"
        return told

    def messages(self, stream: str) -> dict[int, tuple[str, bytes]]:
        """Return what a stream holds: subject and payload by sequence."""
        state = self.do(f"STREAM.INFO.{stream}")["state"]
        found = {}
        for sequence in range(state["first_seq"], state["last_seq"] + 1):
            told = self.request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d}' % sequence)
            if not told.status:
                assert int(told.headers["Nats-Sequence"]) == sequence
                found[sequence] = told.headers["Nats-Subject"], told.payload
        assert len(found) == state["messages"]
        return found

    def _read(self) -> Told:
        while True:
            self._take(self._raw.line())
            if self._came:
                return self._came.pop()

    def _take(self, line: bytes) -> None:
        verb, *words = line.decode().split(" ")
        if verb == "PING":
            self._raw.send(b"PONG\r\n")
        elif verb == "MSG":
            self._came.append(self._told(words, 0))
        elif verb == "HMSG":
            self._came.append(self._told(words[:-2] + words[-1:], int(words[-2])))
        else:
            assert verb in ("PONG", "INFO"), line

    def _told(self, words: list[str], header_bytes: int) -> Told:
        subject, size = words[0], int(words[-1])
        reply = words[2] if len(words) == 4 else ""
        data = self._raw.read(size + 2)
        first, *lines = data[:header_bytes].decode().split("\r\n") if header_bytes else [""]
        pairs = [line.partition(":") for line in lines if line]
        headers = {key: value.strip() for key, _, value in pairs}
        status = first.removeprefix("NATS/1.0").strip()
        return Told(subject, reply, status, headers, data[header_bytes:-2])
