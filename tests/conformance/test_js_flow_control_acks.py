"""Acks that come with the answers to flow control requests, and consumers nobody is told of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import Servers
from tests.servers import Program, RawClient

CONFIG = 'jetstream { store_dir: "js" }'
REQUEST = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


@pytest.fixture
def client(program: Program, servers: Servers) -> Iterator[RawClient]:
    with RawClient(servers(program, CONFIG).port) as client:
        client.connect().send(b"SUB _INBOX.> 1\r\nSUB push 2\r\n")
        call(client, "STREAM.CREATE.FLOW", name="FLOW", subjects=["flow"])
        for _ in range(5):
            client.send(b"PUB flow _INBOX.a 1\r\nx\r\n")
            next_message(client, b"_INBOX.a")
        yield client
        call(client, "STREAM.DELETE.FLOW")


def call(client: RawClient, name: str, /, **fields: Any) -> Any:
    body = json.dumps(fields).encode() if fields else b""
    client.send(b"PUB $JS.API.%b _INBOX.c %d\r\n%b\r\n" % (name.encode(), len(body), body))
    return json.loads(next_message(client, b"_INBOX.c")[1])


def next_message(client: RawClient, subject: bytes) -> tuple[bytes, bytes]:
    """Return reply and data of the next message with a subject; heartbeats come at any time."""
    while True:
        fields = client.line().split()
        if fields[0] not in (b"MSG", b"HMSG"):
            continue
        data = client.read(int(fields[-1]) + 2)[:-2]
        has_reply = len(fields) - (4 if fields[0] == b"MSG" else 5) == 1
        if fields[1] == subject and b"Idle Heartbeat" not in data:
            return (fields[3] if has_reply else b""), data


def consume(client: RawClient, name: str, /, **config: Any) -> Any:
    config = {"name": name, "deliver_subject": "push"} | config
    body = {"stream_name": "FLOW", "config": config}
    encoded = json.dumps(body).encode()
    subject = f"$JS.API.CONSUMER.CREATE.FLOW.{name}".encode()
    client.send(b"PUB %b %d\r\n%b\r\n" % (subject, len(encoded), encoded))


def answer(client: RawClient, subject: bytes, consumer_sequence: int, sequence: int) -> None:
    """Answer a flow control request, and say how far the client is."""
    lines = (f"Nats-Last-Consumer: {consumer_sequence}", f"Nats-Last-Stream: {sequence}")
    header = "\r\n".join(("NATS/1.0", *lines, "", "")).encode()
    client.send(b"HPUB %b %d %d\r\n%b\r\n" % (subject, len(header), len(header), header))


def test_an_answer_to_flow_control_acks_all_up_to_where_the_client_is(client: RawClient) -> None:
    consume(client, "F", durable_name="F", ack_policy="flow_control", max_ack_pending=2)
    first = [next_message(client, b"flow")[0] for _ in range(2)]
    subject, data = next_message(client, b"push")
    waiting = call(client, "CONSUMER.INFO.FLOW.F")
    answer(client, subject, 2, 2)
    then = [next_message(client, b"flow")[0] for _ in range(2)]
    after = call(client, "CONSUMER.INFO.FLOW.F")

    assert data == REQUEST
    assert [b"1", b"2"] == [reply.split(b".")[5] for reply in first]
    assert (2, 0) == (waiting["num_ack_pending"], waiting["ack_floor"]["stream_seq"])
    assert [b"3", b"4"] == [reply.split(b".")[5] for reply in then]
    assert (2, 2) == (after["num_ack_pending"], after["ack_floor"]["stream_seq"])


def test_it_is_asked_with_a_heartbeat_too(client: RawClient) -> None:
    consume(client, "F", durable_name="F", ack_policy="flow_control")
    for _ in range(5):
        next_message(client, b"flow")
    subject, data = next_message(client, b"push")
    answer(client, subject, 5, 5)
    client.settle()

    assert data == REQUEST
    assert 5 == call(client, "CONSUMER.INFO.FLOW.F")["ack_floor"]["stream_seq"]


def test_a_plain_ack_is_for_nobody(client: RawClient) -> None:
    consume(client, "F", durable_name="F", ack_policy="flow_control")
    reply, _ = next_message(client, b"flow")
    client.send(b"PUB %b _INBOX.n 4\r\n+ACK\r\n" % reply)

    assert b"503" in next_message(client, b"_INBOX.n")[1]


def test_a_direct_consumer_is_in_no_list_and_holds_nothing_back(client: RawClient) -> None:
    consume(client, "D", ack_policy="none", direct=True)
    for _ in range(5):
        next_message(client, b"flow")

    assert [] == call(client, "CONSUMER.NAMES.FLOW")["consumers"]
    assert [] == call(client, "CONSUMER.LIST.FLOW")["consumers"]
    assert 0 == call(client, "STREAM.INFO.FLOW")["state"]["consumer_count"]
    assert "D" == call(client, "CONSUMER.INFO.FLOW.D")["name"]
