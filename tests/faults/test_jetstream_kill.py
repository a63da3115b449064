"""
Nothing is lost when the server is killed at any moment, under load, again and again.

Each round starts it on what the last one left, lets a publisher and a consumer of
two streams work for a moment, and kills it. `KILL_ROUNDS` says how often.

SIGKILL leaves the page cache alone, so this is about the server's own order of
doing things. What a power cut takes is in `test_jetstream_power`.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults.witness import Witness
from tests.servers import PENSTOCK, ServerProcess

from penstock.client import Client, JetStream, connect
from penstock.client.jetstream.jetstream import Outgoing
from penstock.client.jetstream.puback import PubAck
from penstock.client.messages import Message
from penstock.errors import PenstockError

ROUNDS = int(os.environ.get("KILL_ROUNDS", "15"))
SEED = int(os.environ.get("KILL_SEED", "1"))
LIFE_S_MAX = 0.3
STARTS_KILLED_SHARE = 0.2
WINDOW = 200
BATCH = 100
ACK_WAIT_S = 3
STREAMS = {"S": "limits", "W": "workqueue"}


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("key", [None, "s3cret"], ids=["plain", "encrypted"])
def test_a_killed_server_has_lost_nothing_it_acknowledged(
    tmp_path: Path, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key is not None:
        monkeypatch.setenv("PENSTOCK__JETSTREAM__KEY", key)
    chance = random.Random(SEED)
    witnesses = [Witness(name, chance) for name in STREAMS]
    with server(tmp_path) as running:
        asyncio.run(create_streams(running.url))
    for _ in range(ROUNDS):
        if chance.random() < STARTS_KILLED_SHARE:
            kill_at_start(tmp_path, chance.uniform(0.1, 0.5))
        with server(tmp_path) as running:
            life_s = chance.uniform(0.01, LIFE_S_MAX)
            asyncio.run(live(running, witnesses, life_s))
    with server(tmp_path) as running:
        asyncio.run(check_all(running.url, witnesses))
    assert all(len(witness.settled) > ROUNDS for witness in witnesses), "there was no load"


def server(store: Path) -> ServerProcess:
    return ServerProcess(PENSTOCK, "", "-js", "-sd", str(store))


def kill_at_start(store: Path, delay_s: float) -> None:
    """Kill a server somewhere between its first instruction and being ready."""
    flags = ("-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(store))
    process = subprocess.Popen([*PENSTOCK.command, *flags], stderr=subprocess.DEVNULL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(delay_s)
    process.kill()
    process.wait()


async def create_streams(url: str) -> None:
    async with await connect(url) as client:
        jetstream = client.jetstream()
        for name, retention in STREAMS.items():
            await jetstream.streams.create(name, subjects=[f"{name}.>"], retention=retention)
            await jetstream.consumers.create(
                name,
                durable_name="C",
                ack_policy="explicit",
                ack_wait=ACK_WAIT_S * 1_000_000_000,
                max_ack_pending=100_000,
            )


async def live(running: ServerProcess, witnesses: list[Witness], life_s: float) -> None:
    """Work on all streams, and kill the server in the middle of it."""
    clients = [await connect(running.url, reconnect=False) for _ in range(2 * len(witnesses))]
    for witness in witnesses:
        await check_consumer(clients[0].jetstream(), witness)
    pairs = zip(clients[::2], clients[1::2], witnesses, strict=True)
    workers = [
        asyncio.create_task(work)
        for publisher, consumer, witness in pairs
        for work in (publish(publisher, witness), consume(consumer, witness))
    ]
    _, working = await asyncio.wait(workers, timeout=life_s)
    running.process.kill()
    for worker in workers:
        with suppress(PenstockError):
            await worker
    for client in clients:
        await client.close()
    assert len(working) == len(workers), "somebody stopped before the server did"


async def publish(client: Client, witness: Witness) -> None:
    """Publish with a window until the server is gone."""
    jetstream = client.jetstream(window_messages_max=WINDOW)
    subjects = [f"{witness.stream}.{number}" for number in range(10)]
    while True:
        for subject in subjects:
            payload = witness.payload()
            await jetstream.publish_with(Outgoing(subject, payload), on_ack(witness, payload))
        await asyncio.sleep(0)


def on_ack(witness: Witness, payload: bytes) -> Callable[[PubAck | None, Exception | None], None]:
    def take(ack: PubAck | None, error: Exception | None) -> None:
        if ack is not None:
            witness.on_stored(payload, ack)

    return take


async def consume(client: Client, witness: Witness) -> None:
    """Fetch, and ack twice, until the server is gone."""
    async with client.jetstream().pull_consumer(witness.stream, "C") as consumer:
        while not client.closed:
            await settle(await consumer.fetch(BATCH, expires_s=1.0), witness)


async def settle(messages: list[Message], witness: Witness) -> None:
    for message in messages:
        witness.on_delivered(message.metadata.stream_sequence, message.payload)
    acks = await asyncio.gather(*(each.ack_sync() for each in messages), return_exceptions=True)
    for message, error in zip(messages, acks, strict=True):
        if error is None:
            witness.settled.add(message.metadata.stream_sequence)
        elif not isinstance(error, PenstockError):
            raise error


async def check_consumer(jetstream: JetStream, witness: Witness) -> None:
    info = await jetstream.consumers.info(witness.stream, "C")
    witness.check_ack_floor(info["ack_floor"]["stream_seq"])


async def check_all(url: str, witnesses: list[Witness]) -> None:
    async with await connect(url) as client:
        for witness in witnesses:
            jetstream = client.jetstream()
            await check_consumer(jetstream, witness)
            await drain(jetstream, witness)
            witness.check_delivered()
        limits, workqueue = witnesses
        limits.check_messages(await read(client.jetstream(), limits.stream))
        state = (await client.jetstream().streams.info(workqueue.stream))["state"]
        assert state["messages"] == 0


async def drain(jetstream: JetStream, witness: Witness) -> None:
    """Consume all that is left, the redeliveries too."""
    async with jetstream.pull_consumer(witness.stream, "C") as consumer:
        while True:
            info = await consumer.info()
            if not info["num_pending"] and not info["num_ack_pending"]:
                return
            await settle(await consumer.fetch(BATCH, expires_s=0.5), witness)


async def read(jetstream: JetStream, stream: str) -> list[tuple[int, bytes]]:
    """Return all messages of a stream."""
    config = {"ack_policy": "none", "deliver_policy": "all"}
    name = (await jetstream.consumers.create(stream, **config))["name"]
    found: list[tuple[int, bytes]] = []
    async with jetstream.pull_consumer(stream, name) as consumer:
        while messages := await consumer.fetch(1000, no_wait=True):
            found += [(each.metadata.stream_sequence, each.payload) for each in messages]
    return found
