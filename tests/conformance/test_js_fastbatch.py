"""
Fast batches, as the real server and ours answer them.

A step is what its reply subject says, `<batch>.<flow>.<gap mode>.<sequence>.<operation>`,
and maybe a payload and a header; the answers of all steps are in the order they come.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.conformance.jsrequests import CONFIG
from tests.conftest import Servers
from tests.servers import Program, RawClient

START, APPEND, COMMIT, END, PING = range(5)


def ack(sequence: int, messages: int) -> dict[str, Any]:
    return {"type": "ack", "seq": sequence, "msgs": messages}


def gap(expected: int, sequence: int) -> dict[str, Any]:
    return {"type": "gap", "last_seq": expected, "seq": sequence}


def committed(sequence: int, batch: str, count: int) -> dict[str, Any]:
    return {"seq": sequence, "batch": batch, "count": count}


SCENARIOS: dict[str, tuple[list[tuple[str, ...]], list[Any]]] = {
    "one": ([("a.10.fail.1.2",)], [committed(1, "a", 1)]),
    "committed": (
        [("a.2.fail.1.0",), ("a.2.fail.2.1",), ("a.2.fail.3.1",), ("a.2.fail.4.2",)],
        [ack(0, 2), ack(2, 2), committed(4, "a", 4)],
    ),
    "ended": (
        [("a.2.fail.1.0",), ("a.2.fail.2.1",), ("a.2.fail.3.3",)],
        [ack(0, 2), ack(2, 2), committed(2, "a", 2)],
    ),
    "gap that fails": (
        [("a.10.fail.1.0",), ("a.10.fail.3.1",), ("a.10.fail.4.1",)],
        [ack(0, 10), gap(2, 3), committed(1, "a", 1), 10208],
    ),
    "gap that is fine": (
        [("a.10.ok.1.0",), ("a.10.ok.4.1",), ("a.10.ok.5.2",)],
        [ack(0, 10), gap(2, 4), committed(3, "a", 5)],
    ),
    "backwards": (
        [("a.10.ok.1.0",), ("a.10.ok.2.1",), ("a.10.ok.2.1",)],
        [ack(0, 10), gap(3, 2), committed(2, "a", 2)],
    ),
    "pings": (
        [("a.2.fail.1.0",), ("a.2.fail.2.1",), ("a.2.fail.2.4",), ("a.2.fail.3.2",)],
        [ack(0, 2), ack(2, 2), ack(2, 2), committed(3, "a", 3)],
    ),
    "ping tells a gap": (
        [("a.2.fail.1.0",), ("a.2.fail.3.4",)],
        [ack(0, 2), gap(2, 4), committed(1, "a", 1)],
    ),
    "ping over a gap": (
        [("a.2.ok.1.0",), ("a.2.ok.3.4",), ("a.2.ok.4.2",)],
        [ack(0, 2), gap(2, 4), ack(2, 2), committed(2, "a", 4)],
    ),
    "error first": (
        [("a.10.fail.1.0", "x", "Nats-Expected-Last-Sequence: 9")],
        [ack(0, 10), 10071],
    ),
    "error later": (
        [("a.10.fail.1.0",), ("a.10.fail.2.1", "x", "Nats-Expected-Last-Sequence: 9")],
        [ack(0, 10), {"type": "err", "seq": 2, "error": 10071}, committed(1, "a", 1)],
    ),
    "error that is fine": (
        [
            ("a.10.ok.1.0",),
            ("a.10.ok.2.1", "x", "Nats-Expected-Last-Sequence: 9"),
            ("a.10.ok.3.2",),
        ],
        [ack(0, 10), {"type": "err", "seq": 2, "error": 10071}, committed(2, "a", 3)],
    ),
    "error in the commit": (
        [("a.10.ok.1.0",), ("a.10.ok.2.2", "x", "Nats-Expected-Last-Sequence: 9")],
        [ack(0, 10), {"type": "err", "seq": 2, "error": 10071}, committed(1, "a", 1)],
    ),
    "duplicates": (
        [
            ("a.2.fail.1.0", "x", "Nats-Msg-Id: 1"),
            ("a.2.fail.2.1", "x", "Nats-Msg-Id: 1"),
            ("a.2.fail.3.2", "x", "Nats-Msg-Id: 1"),
        ],
        [ack(0, 2), ack(2, 2), committed(1, "a", 3)],
    ),
    "nonsense": (
        [
            *((reply,) for reply in ("a.10.fail.2.0", "a.10.fail.1.1", "a.10.fail.1.3")),
            *((reply,) for reply in ("a.10.bogus.1.0", "a.10.fail.0.0", "a.10.fail.1.5")),
            *((reply,) for reply in ("a.10.fail.x.0", "a.10.fail.1.x", "fail.1.0")),
        ],
        [10206] * 9,
    ),
    "unknown": ([("b.10.fail.2.1",), ("b.10.fail.2.2",), ("b.10.fail.2.4",)], [10208] * 3),
    "long id": ([(f"{'i' * 65}.10.fail.1.0",)], [10207]),
    "no flow": ([("a.x.fail.1.0",), ("a.x.fail.2.2",)], [ack(0, 10), committed(2, "a", 2)]),
    "two at once": (
        [("a.4.fail.1.0",), ("b.4.fail.1.0",), ("b.4.fail.2.1",), ("a.4.fail.2.2",)],
        [ack(0, 4), ack(0, 1), ack(1, 2), committed(4, "a", 2)],
    ),
    "api level": (
        [
            ("a.10.fail.1.0", "x", "Nats-Required-Api-Level: 0"),
            ("a.10.fail.2.1", "x", "Nats-Required-Api-Level: 999"),
        ],
        [ack(0, 10), 10185],
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fast_batch_is_answered_now_and_then(
    name: str, program: Program, servers: Servers
) -> None:
    steps, expected = SCENARIOS[name]
    # The real server may bring back the messages of a stream that was just deleted.
    stream = f"FB{list(SCENARIOS).index(name)}"
    with RawClient(servers(program, CONFIG).port) as client:
        client.connect()
        client.send(b"SUB _INBOX.f.> 1\r\nSUB _INBOX.end 2\r\n")
        _api(
            client,
            f"CREATE.{stream}",
            {"name": stream, "subjects": ["fb.>"], "allow_batched": True},
        )
        try:
            for step in steps:
                client.send(_encoded(*step))
            # Answers leave in order, so this one comes last.
            client.send(b"PUB fb.end _INBOX.end 0\r\n\r\n")
            actual = _answers(client)
        finally:
            _api(client, f"DELETE.{stream}")

    assert expected == actual


def test_a_stream_that_takes_no_fast_batches_says_so(program: Program, servers: Servers) -> None:
    with RawClient(servers(program, CONFIG).port) as client:
        client.connect()
        client.send(b"SUB _INBOX.f.> 1\r\nSUB _INBOX.end 2\r\n")
        _api(client, "CREATE.FB", {"name": "FB", "subjects": ["fb.>"]})
        try:
            client.send(_encoded("a.10.fail.1.0") + b"PUB fb.end _INBOX.end 0\r\n\r\n")
            actual = _answers(client)
        finally:
            _api(client, "DELETE.FB")

    assert [10205] == actual


def _api(client: RawClient, call: str, document: dict[str, Any] | None = None) -> None:
    body = json.dumps(document) if document else ""
    client.send(f"PUB $JS.API.STREAM.{call} _INBOX.end {len(body)}\r\n{body}\r\n".encode())
    answer = _message(client)[1]
    assert "error" not in answer, answer


def _encoded(reply: str, payload: str = "x", header: str = "") -> bytes:
    subject = f"fb.x _INBOX.f.{reply}.$FI"
    if not header:
        return f"PUB {subject} {len(payload)}\r\n{payload}\r\n".encode()
    block = f"NATS/1.0\r\n{header}\r\n\r\n"
    sizes = f"{len(block)} {len(block) + len(payload)}"
    return f"HPUB {subject} {sizes}\r\n{block}{payload}\r\n".encode()


def _answers(client: RawClient) -> list[Any]:
    """Return what came before the end, errors as their code."""
    found = []
    while True:
        sid, answer = _message(client)
        if sid == b"2":
            return found
        answer.pop("stream", None)
        error = answer.get("error")
        if error is not None and "type" in answer:
            answer["error"] = error["err_code"]
        found.append(error["err_code"] if error is not None and "type" not in answer else answer)


def _message(client: RawClient) -> tuple[bytes, Any]:
    while True:
        fields = client.line().split()
        if fields[0] in (b"MSG", b"HMSG"):
            body = client.read(int(fields[-1]) + 2)[:-2]
            return fields[2], json.loads(body)
