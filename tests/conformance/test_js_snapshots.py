"""Snapshots taken from one server and restored on another, ours and the real one, each way."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, StreamConfig
from tests.conftest import Servers
from tests.servers import PROGRAMS, Program

CONFIG = 'jetstream { store_dir: "js" }'
DEADLINE_S = 20.0
PAYLOAD = b"x" * 3000
EACH = pytest.mark.parametrize("target", PROGRAMS, ids=lambda each: f"to-{each.name}")


async def request(client: Client, subject: str, **fields: Any) -> dict[str, Any]:
    body = json.dumps(fields).encode() if fields else b""
    answer = await client.request(f"$JS.API.{subject}", body, timeout=DEADLINE_S)
    document: dict[str, Any] = json.loads(answer.data)
    assert "error" not in document, document
    return document


async def take_snapshot(
    client: Client, stream: str, **options: Any
) -> tuple[dict[str, Any], list[bytes]]:
    """Return what the server says of the stream, and the chunks of the snapshot."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    answer = await request(client, f"STREAM.SNAPSHOT.{stream}", deliver_subject=inbox, **options)
    chunks = []
    while True:
        message = await subscription.next_msg(timeout=DEADLINE_S)
        if not message.data:
            break
        chunks.append(message.data)
        if message.reply:
            await message.respond(b"")
    await subscription.unsubscribe()
    return answer, chunks


async def restore(
    client: Client, stream: str, answer: dict[str, Any], chunks: list[bytes]
) -> dict[str, Any]:
    fields = {"config": answer["config"], "state": answer["state"]}
    subject = (await request(client, f"STREAM.RESTORE.{stream}", **fields))["deliver_subject"]
    for chunk in chunks:
        ack = await client.request(subject, chunk, timeout=DEADLINE_S)
        assert ack.data == b""
    result = await client.request(subject, b"", timeout=DEADLINE_S)
    document: dict[str, Any] = json.loads(result.data)
    assert "error" not in document, document
    return document


async def fill(client: Client) -> None:
    """Make a stream with gaps, headers, many messages, and a consumer in the middle of it."""
    js = client.jetstream()
    await js.add_stream(StreamConfig(name="SNAP", subjects=["snap.>"]))
    for number in range(120):
        headers = {"Nats-Msg-Id": str(number)} if number % 3 == 0 else None
        await js.publish(f"snap.{number % 7}", PAYLOAD + b"%d" % number, headers=headers)
    for sequence in (1, 2, 50, 51, 52, 119, 120):
        await js.delete_msg("SNAP", sequence)
    config = ConsumerConfig(durable_name="C", ack_policy="explicit", filter_subject="snap.*")
    await js.add_consumer("SNAP", config)
    pull = await js.pull_subscribe_bind("C", "SNAP")
    messages = await pull.fetch(10, timeout=DEADLINE_S)
    for message in messages[:4] + messages[6:7]:
        await message.ack_sync()


async def contents(client: Client) -> list[Any]:
    """Return everything the stream holds."""
    found = []
    js = client.jetstream()
    for sequence in range(1, 121):
        try:
            message = await js.get_msg("SNAP", sequence)
        except nats.js.errors.NotFoundError:
            continue
        found.append((message.seq, message.subject, message.data, message.headers))
    return found


def figures(info: dict[str, Any]) -> dict[str, Any]:
    names = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")
    shown = {name: info[name] for name in names}
    for name in ("delivered", "ack_floor"):
        shown[name].pop("last_active", None)
    return shown


async def hand_over(source: str, target: str) -> None:
    giver, taker = await nats.connect(source), await nats.connect(target)
    try:
        await fill(giver)
        expected, before = await contents(giver), await request(giver, "CONSUMER.INFO.SNAP.C")
        answer, chunks = await take_snapshot(giver, "SNAP", chunk_size=16 * 1024, window_size=1)
        state = (await request(giver, "STREAM.INFO.SNAP"))["state"]
        await request(giver, "STREAM.DELETE.SNAP")
        restored = await restore(taker, "SNAP", answer, chunks)

        names = ("messages", "first_seq", "last_seq", "num_deleted")
        assert [state[name] for name in names] == [restored["state"][name] for name in names]
        assert expected == await contents(taker)
        assert figures(before) == figures(await request(taker, "CONSUMER.INFO.SNAP.C"))
        assert 121 == (await taker.jetstream().publish("snap.1", b"next")).seq
        await request(taker, "STREAM.DELETE.SNAP")
    finally:
        await giver.close()
        await taker.close()


@EACH
def test_a_stream_moves_with_its_consumers(
    program: Program, target: Program, servers: Servers
) -> None:
    source_url, target_url = servers(program, CONFIG).url, servers(target, CONFIG).url

    asyncio.run(hand_over(source_url, target_url))


async def leave_out_consumers(url: str) -> None:
    client = await nats.connect(url)
    try:
        await fill(client)
        answer, chunks = await take_snapshot(client, "SNAP", no_consumers=True)
        await request(client, "STREAM.DELETE.SNAP")
        restored = await restore(client, "SNAP", answer, chunks)
        await request(client, "STREAM.DELETE.SNAP")

        assert 0 == restored["state"]["consumer_count"]
        assert 113 == restored["state"]["messages"]
    finally:
        await client.close()


def test_consumers_may_be_left_out(program: Program, servers: Servers) -> None:
    asyncio.run(leave_out_consumers(servers(program, CONFIG).url))
