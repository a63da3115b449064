"""
Push and ordered consumers when a client or the server dies: in order, without gaps, on and on.

With flow control the server waits for a client's answer. Whoever was asked may be killed
before that; then those who are left, or come later, get the rest all the same.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig
from tests.faults.outsider import Outsider, Told
from tests.servers import DEADLINE_S, PENSTOCK, ServerProcess, wait_until

from penstock.client import connect

KILLS = int(os.environ.get("PUSH_KILLS", "3"))
PATIENCE_S = 6 * DEADLINE_S
PAYLOAD = bytes(50_000)
MESSAGES = 100
"""So many that what the server sends without an answer is a part of it."""
HEARTBEAT_NS = 500_000_000
NATS_PY_LEAVES_SOCKETS = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning"
)
"""Of a connection that was cut while it was being made, it closes nothing."""


def server(store: Path) -> ServerProcess:
    return ServerProcess(PENSTOCK, "", "-js", "-sd", str(store))


def prepare(client: Outsider, **config: Any) -> None:
    """Make a stream full of messages, and a push consumer with flow control."""
    client.do("STREAM.CREATE.S", name="S", subjects=["s"])
    for _ in range(MESSAGES):
        client.store("s", PAYLOAD)
    consumer = {"durable_name": "P", "deliver_subject": "push", "flow_control": True}
    consumer |= {"idle_heartbeat": HEARTBEAT_NS} | config
    client.do("CONSUMER.CREATE.S.P", stream_name="S", config=consumer)


def take(client: Outsider) -> Iterator[Told]:
    """Yield what is pushed; the simplest of clients, that answers when it is asked."""
    while True:
        told = client.wait()
        if told.status.startswith("100"):
            if told.reply:
                client.publish(told.reply)
        else:
            yield told


def wait_until_asked(client: Outsider) -> list[int]:
    """Take messages until we are asked how far we are, and do not answer; return them."""
    taken = []
    while True:
        told = client.wait()
        if told.reply.startswith("$JS.FC."):
            return taken
        if not told.status:
            taken.append(told.sequence)


def test_who_comes_after_a_client_that_never_answered_gets_the_rest(tmp_path: Path) -> None:
    with server(tmp_path) as running, Outsider(running) as second:
        prepare(second, ack_policy="none")
        with Outsider(running) as first:
            first.subscribe("push")
            asked = wait_until_asked(first)
        assert asked == list(range(1, len(asked) + 1))
        assert len(asked) < MESSAGES
        # While the server still sees the first one, it waits for its answer.
        wait_until(lambda: not second.do("CONSUMER.INFO.S.P").get("push_bound"))
        second.subscribe("push")

        found = [told.sequence for told in itertools.islice(take(second), 1)]
        found += [t.sequence for t in itertools.islice(take(second), MESSAGES - found[0])]

        # What was on its way to the first is gone with it: nobody was to ack it.
        assert found == list(range(found[0], MESSAGES + 1))


def test_the_others_of_a_group_go_on_without_the_one_that_was_asked(tmp_path: Path) -> None:
    with server(tmp_path) as running, Outsider(running) as left:
        prepare(left, ack_policy="none", deliver_group="g")
        with Outsider(running) as asked:
            left.subscribe("push", "g")
            asked.subscribe("push", "g")
            # A request goes to one of the two: let it be this one.
            seen = wait_until_asked_of_two(asked, left)
        found = seen + [each.sequence for each in until_last(left)]

        assert found == sorted(found)
        assert found[-1] == MESSAGES


def wait_until_asked_of_two(asked: Outsider, left: Outsider) -> list[int]:
    """Return what `left` took by the time that `asked` was asked how far it is."""
    taken = []
    while True:
        told = asked.next(0.05)
        if told is not None and told.reply.startswith("$JS.FC."):
            return taken
        other = left.next(0.05)
        # A heartbeat asks again, of either: what is left unanswered here comes to the other too.
        if other is not None and not other.status:
            taken.append(other.sequence)


def until_last(client: Outsider) -> Iterator[Told]:
    for told in take(client):
        yield told
        if told.sequence == MESSAGES:
            return


def test_a_killed_server_goes_on_where_its_clients_are(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        with Outsider(running) as client:
            prepare(client, ack_policy="explicit", ack_wait=2 * 10**9)
        acked: set[int] = set()
        for life in range(KILLS + 1):
            with Outsider(running) as client:
                client.subscribe("push")
                for told in take(client):
                    assert told.sequence not in acked, "acked, and delivered again"
                    client.request(told.reply, b"+ACK")
                    acked.add(told.sequence)
                    if len(acked) >= (life + 1) * MESSAGES // (KILLS + 1):
                        break
                if life < KILLS:
                    running.process.kill()
            if life < KILLS:
                running.start_again()
        assert acked == set(range(1, MESSAGES + 1))


class Ledger:
    """What was stored, in order: the payloads say so."""

    def __init__(self) -> None:
        self.sent = 0
        self.stored: list[bytes] = []
        self.is_over = False

    async def publish(self, running: ServerProcess) -> None:
        """Publish one after the other, again and again the one that is in doubt."""
        while not self.is_over:
            with suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
                client = await nats.connect(running.url, allow_reconnect=False, error_cb=ignore)
                try:
                    await self.publish_on(client)
                finally:
                    await client.close()
            await asyncio.sleep(0.05)

    async def publish_on(self, client: nats.NATS) -> None:
        js = client.jetstream(timeout=2)
        while not self.is_over:
            payload = b"%d" % len(self.stored)
            await js.publish("s", payload, headers={"Nats-Msg-Id": payload.decode()})
            self.stored.append(payload)


async def ignore(error: Exception) -> None:
    """Nobody is to hear of a connection that we killed."""


async def with_nats_py(url: str) -> AsyncIterator[tuple[int, bytes]]:
    """Yield what an ordered consumer of nats-py gives."""
    client = await nats.connect(
        url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=ignore
    )
    try:
        js = client.jetstream(timeout=PATIENCE_S)
        config = ConsumerConfig(idle_heartbeat=0.5)
        subscription = await js.subscribe("s", ordered_consumer=True, config=config)
        while True:
            message = await subscription.next_msg(timeout=PATIENCE_S)
            yield message.metadata.sequence.stream, message.data
    finally:
        await client.close()


async def with_our_client(url: str) -> AsyncIterator[tuple[int, bytes]]:
    """Yield what an ordered consumer of Penstock's client gives."""
    async with await connect(url) as client:
        async with client.jetstream().ordered_consumer("S") as consumer:
            async for message in consumer:
                yield message.metadata.stream_sequence, message.payload


CLIENTS = {"nats-py": with_nats_py, "penstock": with_our_client}


@NATS_PY_LEAVES_SOCKETS
@pytest.mark.parametrize("name", CLIENTS)
def test_an_ordered_consumer_has_no_gap_however_often_the_server_dies(
    tmp_path: Path, name: str
) -> None:
    with server(tmp_path) as running:
        with Outsider(running) as client:
            client.do("STREAM.CREATE.S", name="S", subjects=["s"])
        asyncio.run(follow(running, CLIENTS[name]))


async def follow(
    running: ServerProcess, read: Callable[[str], AsyncIterator[tuple[int, bytes]]]
) -> None:
    """Read while there are kills, and compare with what was stored."""
    ledger, found = Ledger(), list[tuple[int, bytes]]()
    async with asyncio.TaskGroup() as group:
        publisher = group.create_task(ledger.publish(running))
        reader = group.create_task(collect(read(running.url), found))
        for _ in range(KILLS):
            await reach(ledger, len(found) + 50, found)
            running.process.kill()
            await asyncio.to_thread(running.start_again)
        await reach(ledger, len(found) + 50, found)
        ledger.is_over = True
        await publisher
        await reach(ledger, len(ledger.stored), found)
        reader.cancel()
    assert [payload for _, payload in found] == ledger.stored
    assert [sequence for sequence, _ in found] == list(range(1, len(found) + 1))


async def collect(
    messages: AsyncIterator[tuple[int, bytes]], found: list[tuple[int, bytes]]
) -> None:
    async for each in messages:
        found.append(each)


async def reach(ledger: Ledger, count: int, found: list[tuple[int, bytes]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
