"""A client that asks JetStream, one request at a time, and sees each byte of the answer."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Self

from tests.servers import RawClient, ServerProcess


class Heard(NamedTuple):
    """A message that a client was sent."""

    subject: str
    reply: str
    header: bytes
    payload: bytes


class Asker(RawClient):
    """Asks, publishes and subscribes."""

    inbox = ""

    @classmethod
    def of(cls, server: ServerProcess, user: str) -> Self:
        """Return a client that is logged in as a user whose password is `x`."""
        client = cls(server.port).connect(user=user, **{"pass": "x"})
        client.inbox = f"_INBOX.{user}"
        client.subscribe(client.inbox, 1)
        return client

    def subscribe(self, subject: str, sid: int) -> None:
        """Subscribe, and return once that counts."""
        self.send(f"SUB {subject} {sid}\r\n".encode())
        self.heard()

    def publish(
        self, subject: str, payload: bytes = b"", *, header: bytes = b"", reply: str = ""
    ) -> None:
        """Publish a message; a header is its lines."""
        if not header:
            line = f"PUB {subject} {reply} {len(payload)}\r\n".encode()
            self.send(line + payload + b"\r\n")
            return
        block = b"NATS/1.0\r\n" + header + b"\r\n\r\n"
        sizes = len(block), len(block) + len(payload)
        line = f"HPUB {subject} {reply} {sizes[0]} {sizes[1]}\r\n".encode()
        self.send(line + block + payload + b"\r\n")

    def ask(self, subject: str, body: Any = b"", *, header: bytes = b"") -> dict[str, Any]:
        """Return the JSON that answers a request; what else comes is passed over."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.publish(subject, payload, header=header, reply=self.inbox)
        while True:
            found = self._take(self.line())
            if found is not None and found.subject == self.inbox:
                answer: dict[str, Any] = json.loads(found.payload or b"{}")
                return answer

    def heard(self) -> list[Heard]:
        """Return what was sent to this client before the server answered a PING of its."""
        self.send(b"PING\r\n")
        found: list[Heard] = []
        while (line := self.line()) != b"PONG":
            message = self._take(line)
            if message is not None:
                found.append(message)
        return found

    def hear(self) -> Heard:
        """Wait for one message, and return it."""
        while (message := self._take(self.line())) is None:
            pass
        return message

    def _take(self, line: bytes) -> Heard | None:
        if line == b"PING":
            self.send(b"PONG\r\n")
        fields = line.decode().split(" ")
        if fields[0] not in ("MSG", "HMSG"):
            return None
        header_bytes = int(fields[-2]) if fields[0] == "HMSG" else 0
        has_reply = len(fields) == (6 if header_bytes else 5)
        data = self.read(int(fields[-1]) + 2)[:-2]
        reply = fields[3] if has_reply else ""
        return Heard(fields[1], reply, data[:header_bytes], data[header_bytes:])
