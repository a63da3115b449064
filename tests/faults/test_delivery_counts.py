"""
No message is delivered more often than `max_deliver` says, though the server is killed.

A round is a seed: a client pulls, refuses, acks and waits, and now and then the server
is gone. A kill leaves what the operating system was given; a power cut only what was
synced, and then the deliveries since the last commit may be made once more.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from tests.servers import PENSTOCK, ServerProcess
from tests.simdisk import SimDisk
from tests.unit.jetstream.consuming import Received, ack, consume, publish, request
from tests.unit.jetstream.world import START_NS, World

from penstock.client import JetStream, connect
from penstock.config.jetstream import JetStreamConfig
from penstock.errors import PenstockError
from penstock.jetstream.consumers import consumerlog
from penstock.jetstream.files.streamfiles import StreamFiles

pytestmark = pytest.mark.usefixtures("each_encryption")

MESSAGES = 6
DELIVERIES_MAX = 3
ACK_WAIT_S = 5
ROUNDS = 100
KILLS = 12


class History(World):
    """A client that counts what it is given, of a server that dies now and then."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ns = START_NS
        self.config = JetStreamConfig(store_dir="store")
        self.remotes = {}
        self.disk = SimDisk(seed)
        self.seen: Counter[int] = Counter()
        """How often each message came."""
        self.owed: Counter[int] = Counter()
        """How often it had come when the last commit ended: that much is known for good."""
        self.pulled: list[Received] = []
        self._start()
        self.create("S", storage="file")
        wait_ns = ACK_WAIT_S * 10**9
        consume(self, "S", "C", max_deliver=DELIVERIES_MAX, ack_wait=wait_ns)
        publish(self, "S", *map(str, range(MESSAGES)))

    def files(self) -> StreamFiles:
        return StreamFiles(self.disk, self.config.store_dir, "$G")

    def live(self) -> None:
        steps = [self.pull] * 4 + [self.refuse] * 3 + [self.accept, self.wait] + [self.commit] * 2
        for _ in range(self.random.randint(1, 15)):
            self.random.choice(steps)()

    def pull(self) -> None:
        for message in request(self, "S", "C", batch=self.random.randint(1, 4), no_wait=True):
            if message.reply:
                self.pulled.append(message)
                self.seen[message.numbers[1]] += 1

    def refuse(self) -> None:
        if self.pulled:
            ack(self, self.pulled.pop(), "-NAK")

    def accept(self) -> None:
        if self.pulled and self.random.random() < 0.3:
            ack(self, self.pulled.pop(), "+ACK")

    def wait(self) -> None:
        self.now_ns += self.random.randint(1, 2 * ACK_WAIT_S) * 10**9
        self.shared.timers.run(self.now_ns)

    def commit(self) -> None:
        self.engine.context.touch(self.engine.streams["S"].consumer_files)  # type: ignore[arg-type]
        self.settle()
        self.owed = self.seen.copy()

    def kill(self) -> None:
        """Start again on what the operating system has."""
        self.pulled.clear()
        self._start()

    def cut(self) -> None:
        """Start again on what is on the disk."""
        self.seen = self.owed.copy()
        self.disk = self.disk.crash()
        self.kill()

    def drain(self) -> None:
        """Take what is still to come, until nothing comes any more."""
        for _ in range(2 * DELIVERIES_MAX):
            self.pull()
            self.now_ns += 2 * ACK_WAIT_S * 10**9
            self.shared.timers.run(self.now_ns)


@pytest.fixture(autouse=True)
def tiny_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumerlog, "LOG_BYTES_MIN", 600)


@pytest.mark.parametrize("end", [History.kill, History.cut], ids=["kill", "power cut"])
def test_no_message_comes_more_often_than_it_may(end: object) -> None:
    for seed in range(ROUNDS):
        history = History(seed)
        for _ in range(4):
            history.live()
            end(history)  # type: ignore[operator]
        history.drain()
        assert max(history.seen.values()) <= DELIVERIES_MAX, seed


def test_a_delivery_that_nobody_counts_waits_for_the_commit() -> None:
    history = History(0)
    consume(history, "S", "FREE")
    files = history.engine.streams["S"].consumer_files
    assert files is not None
    written = files.log.written_bytes

    assert 4 == len(request(history, "S", "FREE", batch=4))
    assert written == files.log.written_bytes


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_killed_server_delivers_no_message_too_often(tmp_path: Path) -> None:
    seen: Counter[int] = Counter()
    with server(tmp_path) as running:
        asyncio.run(prepare(running.url))
    for index in range(KILLS):
        with server(tmp_path) as running:
            asyncio.run(refuse_until_killed(running, seen, 40 + 7 * index))
    assert sum(seen.values()) > KILLS, "there was no load"
    assert max(seen.values()) <= DELIVERIES_MAX


def server(store: Path) -> ServerProcess:
    return ServerProcess(PENSTOCK, "", "-js", "-sd", str(store))


async def prepare(url: str) -> None:
    async with await connect(url) as client:
        jetstream = client.jetstream()
        await jetstream.streams.create("S", subjects=["s"])
        await jetstream.consumers.create(
            "S", durable_name="C", ack_policy="explicit", max_deliver=DELIVERIES_MAX
        )
        for number in range(40 * KILLS):
            await jetstream.publish("s", b"%d" % number)


async def refuse_until_killed(running: ServerProcess, seen: Counter[int], count: int) -> None:
    """Refuse what comes, and kill the server as soon as that was so many messages."""
    async with await connect(running.url, reconnect=False) as client:
        with suppress(PenstockError):
            await refuse(client.jetstream(), running, seen, sum(seen.values()) + count)


async def refuse(
    jetstream: JetStream, running: ServerProcess, seen: Counter[int], total: int
) -> None:
    async with jetstream.pull_consumer("S", "C") as consumer:
        while messages := await consumer.fetch(10, expires_s=1.0):
            for message in messages:
                seen[message.metadata.stream_sequence] += 1
                if sum(seen.values()) == total:
                    running.process.kill()
                await message.nak()
