"""
Requests to JetStream and their answers, written as text.

    # limits
    > $JS.API.STREAM.CREATE.L {"name":"L","max_msgs":2}     a request: subject, payload
    + Nats-Msg-Id: 1                                        one of its headers
    < {"stream":"L","seq":1}                                what the server answered

In a request `{x*4096}` stands for so many of a character. What differs from server
to server, such as times and ids, is shown by a name for it in capitals. Each file
ends by deleting its streams, so that files do not see each other's.

To add requests, write them down, and let the real server fill in the answers:
`python -m tests.conformance.jsrequests [name]`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers import NATS_SERVER, RawClient, ServerProcess

HERE = Path(__file__).parent / "jetstream"
CONFIG = 'jetstream { store_dir: "js" }'
VARYING = (
    (r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME"),
    (r'"_nats\.ver":"[^"]*"', '"_nats.ver":VERSION'),
    (r'"_nats\.level":"[^"]*"', '"_nats.level":LEVEL'),
    (r'"level":\d+,"total":\d+,"errors":\d+', '"level":LEVEL,"total":COUNT,"errors":COUNT'),
    (r'"leader":"[^"]*"', '"leader":ID'),
    (r'"pause_remaining":\d+', '"pause_remaining":NS'),
    (r"RESTORE\.(\w+)\.\w{22}", r"RESTORE.\1.ID"),
    (r'"active":-?\d+', '"active":DURATION'),
)
GO_ESCAPES = ((r"\u003e", ">"), (r"\u003c", "<"), (r"\u0026", "&"))


@dataclass
class Exchange:
    """One request and its answer."""

    subject: str
    payload: str
    headers: list[str] = field(default_factory=list)
    answer: str = ""

    def encode(self, reply: str) -> bytes:
        """Return it as it is sent."""
        subject, body = (_expand(text).encode() for text in (self.subject, self.payload))
        if not self.headers:
            return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply.encode(), len(body), body)
        block = "\r\n".join(["NATS/1.0", *self.headers, "", ""]).encode()
        sizes = len(block), len(block) + len(body)
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply.encode(), *sizes, block, body)

    def lines(self) -> list[str]:
        """Return it as it is written down."""
        request = f"> {self.subject} {self.payload}".rstrip()
        return [request, *(f"+ {header}" for header in self.headers), f"< {self.answer}"]


@dataclass
class Transcript:
    """A file of them."""

    path: Path
    head: str
    exchanges: list[Exchange]

    def lines(self) -> list[str]:
        """Return it as it is written down."""
        return [self.head, *(line for each in self.exchanges for line in each.lines())]


def load_all() -> list[Transcript]:
    """Return every transcript."""
    return [_load(path) for path in sorted(HERE.glob("*.txt"))]


def play(transcript: Transcript, port: int) -> Transcript:
    """Return the same requests with the answers of this server."""
    with RawClient(port) as client:
        client.connect()
        client.send(b"SUB _INBOX.t.* 1\r\n")
        client.settle()
        delete_streams(client)
        answers = [_ask(client, each) for each in transcript.exchanges]
    exchanges = [
        Exchange(each.subject, each.payload, each.headers, answer)
        for each, answer in zip(transcript.exchanges, answers, strict=True)
    ]
    return Transcript(transcript.path, transcript.head, exchanges)


def delete_streams(client: RawClient) -> None:
    """Start from nothing, also where a test before this one failed half way."""
    listed = json.loads(ask_once(client, Exchange("$JS.API.STREAM.NAMES", "")))
    for name in listed["streams"] or ():
        ask_once(client, Exchange(f"$JS.API.STREAM.DELETE.{name}", ""))


def _ask(client: RawClient, exchange: Exchange) -> str:
    return normalized(ask_once(client, exchange))


def ask_once(client: RawClient, exchange: Exchange) -> bytes:
    """Return the answer as it came."""
    client.send(exchange.encode("_INBOX.t.1"))
    while True:
        fields = client.line().split()
        if fields[0] in (b"MSG", b"HMSG"):
            break
    return client.read(int(fields[-1]) + 2)[:-2]


def normalized(data: bytes) -> str:
    """Return an answer as it is written down."""
    answer = data.decode()
    for pattern, name in VARYING:
        answer = re.sub(pattern, name, answer)
    for escaped, character in GO_ESCAPES:
        answer = answer.replace(escaped, character)
    return answer.replace("\r\n", r"\r\n")


def _load(path: Path) -> Transcript:
    head, *lines = path.read_text().splitlines()
    return Transcript(path, head, list(_exchanges(lines)))


def _exchanges(lines: list[str]) -> Iterator[Exchange]:
    exchange: Exchange | None = None
    for line in lines:
        kind, text = line[:2], line[2:]
        if kind == "> ":
            if exchange is not None:
                yield exchange
            subject, _, payload = text.partition(" ")
            exchange = Exchange(subject, payload)
        else:
            assert exchange is not None, f"no request before: {line}"
            if kind == "+ ":
                exchange.headers.append(text)
            else:
                exchange.answer = text
    if exchange is not None:
        yield exchange


def _expand(text: str) -> str:
    return re.sub(r"\{(.)\*(\d+)\}", lambda found: found[1] * int(found[2]), text)


def record(*names: str) -> None:
    """Ask the real server again, everything or what is named, and write its answers down."""
    with ServerProcess(NATS_SERVER, CONFIG) as server:
        for transcript in load_all():
            if names and transcript.path.stem not in names:
                continue
            played = play(transcript, server.port)
            transcript.path.write_text("\n".join(played.lines()) + "\n")


if __name__ == "__main__":
    record(*sys.argv[1:])
