"""Two accounts on one server: a tenant that works, and one that tries what it can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Self

from tests.servers import RawClient, ServerProcess

CONFIG = """
http_port: -1
jetstream { store_dir: "./store" }
accounts {
  A { jetstream: enabled, users: [{user: a, password: a}] }
  B { jetstream: {LIMITS}, users: [{user: b, password: b}] }
}
"""


def config(limits: str = "max_file: 64MB") -> str:
    """Return a configuration in which account B has these limits, and A has none."""
    return CONFIG.replace("LIMITS", limits)


class Tenant(RawClient):
    """A client of one account that asks and is answered."""

    def __init__(self, server: ServerProcess, user: str) -> None:
        super().__init__(server.port)
        self.connect(user=user, **{"pass": user})
        self._inbox = b"_INBOX.%d" % self.info["client_id"]
        self.send(b"SUB %b.> 1\r\n" % self._inbox)
        self._asked = 0

    def ask(self, subject: str, body: bytes | str = b"", *, header: bytes = b"") -> Any:
        """Send a request and return what is answered, decoded where it is JSON."""
        inbox = self.request(subject, body, header=header)
        return next(answer for to, answer in self.answers() if to == inbox)

    def request(self, subject: str, body: bytes | str = b"", *, header: bytes = b"") -> bytes:
        """Send a request, and return where its answer goes."""
        self._asked += 1
        inbox = b"%b.%d" % (self._inbox, self._asked)
        data = header + (body if isinstance(body, bytes) else body.encode())
        sizes = b"%d %d" % (len(header), len(data)) if header else b"%d" % len(data)
        verb = b"HPUB" if header else b"PUB"
        self.send(b"%b %b %b %b\r\n%b\r\n" % (verb, subject.encode(), inbox, sizes, data))
        return inbox

    def call(self, name: str, /, **fields: Any) -> Any:
        """Make an API call."""
        return self.ask(f"$JS.API.{name}", json.dumps(fields) if fields else b"")

    def create(self, name: str, /, **fields: Any) -> Self:
        """Create a stream, which must work."""
        options = {"name": name, "subjects": [f"{name}.>"], "storage": "file"} | fields
        answer = self.call(f"STREAM.CREATE.{name}", **options)
        assert "error" not in answer, answer
        return self

    def answers(self) -> Iterator[tuple[bytes, Any]]:
        """Yield what comes: to whom, and what, decoded where it is JSON."""
        while True:
            line = self.line()
            if line == b"PING":
                self.send(b"PONG\r\n")
                continue
            assert line.startswith((b"MSG", b"HMSG")), line
            fields = line.split()
            data = self.read(int(fields[-1]) + 2)[:-2]
            payload = data[int(fields[-2]) :] if fields[0] == b"HMSG" else data
            yield fields[1], json.loads(payload) if payload.startswith(b"{") else payload


def works(tenant: Tenant, stream: str) -> None:
    """See that a tenant's stream stores, acknowledges and purges."""
    assert "seq" in tenant.ask(f"{stream}.x", b"payload")
    assert tenant.call(f"STREAM.PURGE.{stream}")["success"] is True
