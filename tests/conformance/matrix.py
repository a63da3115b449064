"""The users of `configs/matrix.conf`, one client of each: whom to ask who may do what."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.servers import NATS_SERVER, PENSTOCK, RawClient, ServerProcess

CONFIG = (Path(__file__).parent / "configs" / "matrix.conf").read_text()
USERS = ("a", "reader", "viewer", "denied", "replier", "b", "c", "d", "anybody", "s")
"""Users with and without permissions, in accounts that share and that do not, and the system's."""
NOBODY = "anybody"
"""Who says nothing of itself."""

AUDIT = "$JS.EVENT.ADVISORY.API"


class Party:
    """One client of each user, on one server."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self.server = server
        self.clients: dict[str, RawClient] = {}
        for user in USERS:
            # Each says who it is at once: a server does not wait for long.
            client = self.clients[user] = stack.enter_context(RawClient(server.port))
            client.connect(**({} if user == NOBODY else {"user": user, "pass": "x"}))
            client.send(b"SUB _INBOX.%b.> inbox\r\n" % user.encode())
            client.settle()
        self.server_id = client.info["server_id"]

    def heard(self, publisher: str, subject: str) -> dict[str, list[str]]:
        """Return under which subjects who hears a message; errors are told too."""
        told: dict[str, list[str]] = {}
        for user, client in self.clients.items():
            queue = f"SUB {subject} readers.{user} queue\r\n"
            client.send(f"SUB > all\r\nSUB {subject} one\r\n{queue}".encode())
            told[user] = _told(client.settle())
        self.clients[publisher].send(b"PUB %b 2\r\nhi\r\n" % subject.encode())
        others = [user for user in USERS if user != publisher]
        for user in (publisher, *others):
            told[user] += _told(self.clients[user].settle())
        for client in self.clients.values():
            client.send(b"UNSUB all\r\nUNSUB one\r\nUNSUB queue\r\n")
            client.settle()
        return told

    def ask(self, user: str, subject: str, body: bytes = b"") -> Any:
        """Return the answer to a request: a document, a status or an error."""
        self._request(user, subject, body, b"q")
        return self._answer(user)[1]

    def is_silent(self, user: str, subject: str, barrier: str) -> Any:
        """Return the answer to a request that may have none, or None; `barrier` has one."""
        self._request(user, subject, b"", b"q")
        self._request(user, barrier, b"", b"end")
        where, answer = self._answer(user)
        if where.endswith("end"):
            return None
        self._answer(user)
        return answer

    def _request(self, user: str, subject: str, body: bytes, reply: bytes) -> None:
        inbox = b"_INBOX.%b.%b" % (user.encode(), reply)
        line = b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox, len(body), body)
        self.clients[user].send(line)

    def _answer(self, user: str) -> tuple[str, Any]:
        client = self.clients[user]
        while (line := client.line()) == b"PING":
            client.send(b"PONG\r\n")
        if line.startswith(b"-ERR"):
            return "", line.decode().replace(self.server_id, "ID")
        fields = line.split()
        size = int(fields[-1])
        data = client.read(size + 2)[:size].decode()
        if line.startswith(b"HMSG"):
            return fields[1].decode(), data.splitlines()[0]
        return fields[1].decode(), json.loads(data) if data else data


def _told(lines: list[bytes]) -> list[str]:
    """Return the errors and the subjects of messages, without those a server sends at any time."""
    told = [line.decode() for line in lines if line.startswith(b"-ERR")]
    messages = [line.decode().split() for line in lines if line.startswith((b"MSG", b"HMSG"))]
    return told + sorted(f"{line[1]} {line[2]}" for line in messages if not _is_untimed(line[1]))


def _is_untimed(subject: str) -> bool:
    """Tell whether a server sends this by a timer of its own: audits and heartbeats."""
    return subject == AUDIT or (subject.startswith("$SYS.SERVER.") and subject.endswith(".STATSZ"))


def open_parties(stack: ExitStack) -> tuple[Party, Party]:
    """Return the same party on the real server, and on ours."""
    servers = [stack.enter_context(ServerProcess(each, CONFIG)) for each in (NATS_SERVER, PENSTOCK)]
    return Party(servers[0], stack), Party(servers[1], stack)
