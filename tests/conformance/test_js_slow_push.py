"""A push consumer and a subscriber that is slow to read: what waits for it, and what it gets."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.servers import (
    DEADLINE_S,
    NATS_SERVER,
    PENSTOCK,
    Program,
    RawClient,
    ServerProcess,
    wait_until,
)

CONFIG = 'jetstream { store_dir: "js" }'
SMALL = f"{CONFIG}, max_pending: 8MB"
"""Less than all the messages, so that a server cannot just send them and forget."""
COUNT = 24_000
PAYLOAD = b"x" * 1000
STILL_S = 0.5
"""A consumer that has sent nothing for this long waits for its subscriber."""


class Asker:
    """Another client, which asks."""

    def __init__(self, port: int) -> None:
        self._raw = RawClient(port).connect()
        self._raw.send(b"SUB _INBOX.x 1\r\n")

    def call(self, name: str, /, **fields: Any) -> dict[str, Any]:
        body = json.dumps(fields).encode()
        head = b"PUB $JS.API.%b _INBOX.x %d\r\n" % (name.encode(), len(body))
        self._raw.send(head + body + b"\r\n")
        size = int(self._raw.line().split()[-1])
        answer: dict[str, Any] = json.loads(self._raw.read(size + 2))
        assert "error" not in answer, answer
        return answer

    def fill(self) -> None:
        """Make a stream with so many messages."""
        self.call("STREAM.CREATE.S", name="S", subjects=["s"], storage="memory")
        for stored in range(1000, COUNT + 1, 1000):
            self._raw.send((b"PUB s %d\r\n" % len(PAYLOAD) + PAYLOAD + b"\r\n") * 1000)
            # nats-server stores behind our back, and drops what it cannot keep up with.
            wait_until(lambda n=stored: n == self.call("STREAM.INFO.S")["state"]["messages"])

    def push(self, **options: Any) -> None:
        """Have the messages sent to `push`."""
        config = {"durable_name": "C", "deliver_subject": "push", "ack_policy": "none", **options}
        self.call("CONSUMER.DURABLE.CREATE.S.C", stream_name="S", config=config)

    def delivered_when_still(self) -> int:
        """Return how many messages were sent by the time no more are."""
        deadline_s = time.monotonic() + 3 * DEADLINE_S
        last, since_s = -1, time.monotonic()
        while time.monotonic() - since_s < STILL_S:
            assert time.monotonic() < deadline_s
            sent = self.call("CONSUMER.INFO.S.C")["delivered"]["consumer_seq"]
            if sent != last:
                last, since_s = sent, time.monotonic()
            time.sleep(0.02)
        return last

    def close(self) -> None:
        self._raw.close()


@contextmanager
def slow(server: ServerProcess) -> Iterator[tuple[Asker, RawClient]]:
    """Yield who asks, and a subscriber to `push` that does not read by itself."""
    asker = Asker(server.port)
    try:
        asker.fill()
        with RawClient(server.port, receive_buffer=64 * 1024) as reader:
            reader.connect()
            reader.send(b"SUB push 1\r\n")
            reader.settle()
            yield asker, reader
    finally:
        asker.close()


def read_all(reader: RawClient) -> list[int]:
    """Read until the last message, and return the sequences; answer flow control."""
    found: list[int] = []
    while len(found) < COUNT:
        verb, *fields = reader.line().split()
        if verb not in (b"MSG", b"HMSG"):
            continue
        reader.read(int(fields[-1]) + 2)
        reply = fields[2] if len(fields) == (4 if verb == b"MSG" else 5) else b""
        if reply.startswith(b"$JS.ACK."):
            found.append(int(reply.split(b".")[5]))
        elif reply:
            reader.send(b"PUB %b 0\r\n\r\n" % reply)
    return found


def test_flow_control_waits_for_a_slow_reader(program: Program) -> None:
    with ServerProcess(program, CONFIG) as server, slow(server) as (asker, reader):
        asker.push(flow_control=True, idle_heartbeat=5_000_000_000)
        sent = asker.delivered_when_still()
        assert 0 < sent < COUNT

        assert list(range(1, COUNT + 1)) == read_all(reader)


def test_without_flow_control_penstock_waits_too() -> None:
    """What is sent fills the socket and the outbox up to the brake, and no more of the memory."""
    with ServerProcess(PENSTOCK, SMALL) as server, slow(server) as (asker, reader):
        before_bytes = server.resident_bytes
        asker.push()
        sent = asker.delivered_when_still()
        assert 0 < sent < COUNT
        assert server.resident_bytes - before_bytes < 3 * COUNT * len(PAYLOAD) // 4

        assert list(range(1, COUNT + 1)) == read_all(reader)


@pytest.mark.parametrize("options", [{}, {"idle_heartbeat": 1_000_000_000}], ids=str)
def test_without_flow_control_nats_server_cuts_it_off(options: dict[str, Any]) -> None:
    """The difference, seen: this is why Penstock has a brake."""
    with ServerProcess(NATS_SERVER, SMALL) as server, slow(server) as (asker, reader):
        asker.push(**options)
        asker.delivered_when_still()
        with pytest.raises((EOFError, ConnectionResetError)):
            read_all(reader)
        assert "Slow Consumer Detected" in server.log
