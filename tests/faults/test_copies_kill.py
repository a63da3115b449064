"""
Copies, work queues and times to live when the server is killed again and again under load.

A mirror ends up equal to its origin, a work queue fed by a source gets each message of the origin
once, and what lives for a time goes at its time, however many servers died meanwhile.
`KILL_ROUNDS` says how often.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults.test_jetstream_kill import BATCH, on_ack, read, server
from tests.faults.witness import Witness
from tests.servers import DEADLINE_S, ServerProcess

from penstock.client import Client, JetStream, connect
from penstock.client.jetstream.jetstream import Outgoing
from penstock.client.jetstream.pull import PullConsumer
from penstock.client.messages import Message
from penstock.errors import PenstockError

ROUNDS = int(os.environ.get("KILL_ROUNDS", "8"))
SEED = int(os.environ.get("KILL_SEED", "1"))
LIFE_S_MAX = 0.6
TTL_S = 2
WINDOW = 200
PATIENCE_S = 6 * DEADLINE_S


class Load:
    """What was published to the origin and to the stream of messages that expire."""

    def __init__(self, chance: random.Random) -> None:
        self.origin = Witness("O", chance)
        self.lasting: set[int] = set()
        """The sequences of messages that never expire."""
        self.expiring: dict[int, float] = {}
        """When each of the others was acknowledged."""
        self.worked: dict[int, bytes] = {}
        """What the work queue delivered, by its sequences there."""
        self.done: set[int] = set()
        """What was acknowledged there: it must not come again."""


@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * ROUNDS)
def test_copies_work_queues_and_times_to_live_survive_kills(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    load = Load(chance)
    with server(tmp_path) as running:
        asyncio.run(create(running.url))
    for _ in range(ROUNDS):
        with server(tmp_path) as running:
            asyncio.run(live(running, load, chance.uniform(0.05, LIFE_S_MAX)))
    with server(tmp_path) as running:
        asyncio.run(check(running.url, load))
    assert min(map(len, (load.origin.stored, load.lasting, load.expiring, load.done))) > ROUNDS


async def create(url: str) -> None:
    async with await connect(url) as client:
        jetstream = client.jetstream()
        await jetstream.streams.create("O", subjects=["O.>"])
        await jetstream.streams.create("MIRROR", mirror={"name": "O"})
        await jetstream.streams.create("WORK", sources=[{"name": "O"}], retention="workqueue")
        await jetstream.consumers.create("WORK", durable_name="C", ack_policy="explicit")
        await jetstream.streams.create("T", subjects=["T.>"], allow_msg_ttl=True)


async def live(running: ServerProcess, load: Load, life_s: float) -> None:
    """Work on everything, and kill the server in the middle of it."""
    clients = [await connect(running.url, reconnect=False) for _ in range(3)]
    await check_alive(clients[0].jetstream(), load)
    works = (publish(clients[0], load.origin), work(clients[1], load), expire(clients[2], load))
    workers = [asyncio.create_task(each) for each in works]
    _, working = await asyncio.wait(workers, timeout=life_s)
    running.process.kill()
    for worker in workers:
        with suppress(PenstockError):
            await worker
    for client in clients:
        await client.close()
    assert len(working) == len(workers), "somebody stopped before the server did"


async def publish(client: Client, witness: Witness) -> None:
    jetstream = client.jetstream(window_messages_max=WINDOW)
    while True:
        payload = witness.payload()
        subject = f"O.{len(witness.sent) % 10}"
        await jetstream.publish_with(Outgoing(subject, payload), on_ack(witness, payload))
        await asyncio.sleep(0)


async def work(client: Client, load: Load) -> None:
    async with client.jetstream().pull_consumer("WORK", "C") as consumer:
        while not client.closed:
            await settle(await consumer.fetch(BATCH, expires_s=1.0), load)


async def settle(messages: list[Message], load: Load) -> None:
    for message in messages:
        sequence = message.metadata.stream_sequence
        assert sequence not in load.done, f"{sequence} was acked, and is delivered again"
        assert load.worked.setdefault(sequence, message.payload) == message.payload
    acks = await asyncio.gather(*(each.ack_sync() for each in messages), return_exceptions=True)
    for message, error in zip(messages, acks, strict=True):
        if error is None:
            load.done.add(message.metadata.stream_sequence)
        elif not isinstance(error, PenstockError):
            raise error


async def expire(client: Client, load: Load) -> None:
    jetstream = client.jetstream()
    while True:
        short = await jetstream.publish("T.short", b"", headers={"Nats-TTL": f"{TTL_S}s"})
        load.expiring[short.sequence] = time.time()
        long = await jetstream.publish("T.long", b"", headers={"Nats-TTL": "never"})
        load.lasting.add(long.sequence)


async def check_alive(jetstream: JetStream, load: Load) -> None:
    """See that nothing went before its time."""
    for sequence in list(load.expiring)[-3:]:
        try:
            await jetstream.streams.get("T", seq=sequence)
        except PenstockError:
            assert time.time() - load.expiring[sequence] > TTL_S - 1, "gone before its time"


async def check(url: str, load: Load) -> None:
    async with await connect(url) as client:
        jetstream = client.jetstream()
        origin = await read(jetstream, "O")
        load.origin.check_messages(origin)
        last = (await jetstream.streams.info("O"))["state"]["last_seq"]
        await until(lambda: has_last(jetstream, "MIRROR", last))
        assert await read(jetstream, "MIRROR") == origin
        await drain(jetstream, load, len(origin))
        # In order, each once.
        assert [payload for _, payload in sorted(load.worked.items())] == [p for _, p in origin]
        await until(lambda: has_only_lasting(jetstream))
        assert load.lasting <= {sequence for sequence, _ in await read(jetstream, "T")}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline, "not so in time"


async def has_last(jetstream: JetStream, name: str, sequence: int) -> bool:
    return bool((await jetstream.streams.info(name))["state"]["last_seq"] == sequence)


async def has_only_lasting(jetstream: JetStream) -> bool:
    info = await jetstream.streams.info("T", subjects_filter=">")
    return set(info["state"]["subjects"]) == {"T.long"}


async def drain(jetstream: JetStream, load: Load, count: int) -> None:
    async with jetstream.pull_consumer("WORK", "C") as consumer:
        await until(lambda: all_settled(jetstream, consumer, load, count))


async def all_settled(jetstream: JetStream, consumer: PullConsumer, load: Load, count: int) -> bool:
    await settle(await consumer.fetch(BATCH, expires_s=0.5), load)
    state = (await jetstream.streams.info("WORK"))["state"]
    return bool(state["messages"] == 0 and len(load.worked) >= count)
