"""
Streams, consumers, buckets and object stores come and go, and leave nothing behind.

Several clients of nats-py make them, use them and delete them, while a stream that
stays has limits, times to live and purges. In the first half of the time the server is
killed now and then, in the second half memory and descriptors are to stay level. At
the end there are the files of what stayed, and no others. `CHURN_SECONDS` says how long.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, KeyValueConfig, ObjectStoreConfig, StreamConfig
from nats.js.errors import NotFoundError
from tests.servers import DEADLINE_S, PENSTOCK, ServerProcess

SECONDS = float(os.environ.get("CHURN_SECONDS", "8"))
KILLS = max(3, int(SECONDS / 120))
GROWTH_BYTES_MAX = 16 << 20
DESCRIPTORS_MORE = 8
STANDING_BYTES_MAX = 4 * (32 << 20)
KEPT = 200
TTL_S = 2
PATIENCE_S = 6 * DEADLINE_S


class Churn:
    """One server under several clients."""

    def __init__(self, running: ServerProcess, store: Path) -> None:
        self.running = running
        self.store = store
        self.chance = random.Random(1)
        self.cycles = 0
        self.stored = 0
        """The number of the last message of the standing stream that was acked."""
        self.gone: set[str] = set()
        """Streams whose end was confirmed."""
        self.deaths = 0
        self.alive = asyncio.Event()
        self.alive.set()
        self.under_way: set[asyncio.Future[None]] = set()
        self.is_over = False

    async def run(self) -> None:
        await self.on_one(make_standing)
        await self.phase(SECONDS / 2, kills=KILLS)
        await self.phase(SECONDS / 4, kills=0)
        await self.settle()
        before = self.running.resident_bytes, descriptors(self.running)
        await self.phase(SECONDS / 4, kills=0)
        await self.settle()
        after = self.running.resident_bytes, descriptors(self.running)
        print(f"{self.cycles} cycles, {self.stored} stored, before {before}, after {after}")
        assert after[0] < before[0] + GROWTH_BYTES_MAX
        assert after[1] < before[1] + DESCRIPTORS_MORE
        await self.check_files()
        self.running.process.kill()
        self.running.start_again()
        await self.check_files()

    async def phase(self, seconds: float, *, kills: int) -> None:
        """Let everybody work for a while, and kill the server so often."""
        self.is_over = False
        makers = [use_stream, use_stream, use_bucket, use_objects, use_standing]
        async with asyncio.TaskGroup() as group:
            for number, work in enumerate(makers):
                group.create_task(self.work(f"{work.__name__}{number}", work))
            for _ in range(kills):
                await asyncio.sleep(seconds / (kills + 1))
                await self.kill()
            await asyncio.sleep(seconds / (kills + 1))
            self.is_over = True

    async def work(self, name: str, use: Callable[[Use], Awaitable[None]]) -> None:
        """Go through cycles; one that a kill cut short is cleaned up after."""
        chance = random.Random(f"{name} {self.cycles}")
        while not self.is_over:
            self.cycles += 1
            label = f"{name}_{self.cycles}"
            await self.attempt(lambda client, label=label: use(Use(self, client, label, chance)))
            for stream in (label, f"KV_{label}", f"OBJ_{label}"):
                while not await self.attempt(lambda client, stream=stream: remove(client, stream)):
                    pass
                self.gone.add(stream)

    async def attempt(self, use: Callable[[Client], Awaitable[None]]) -> bool:
        """Do something that only a kill may prevent; tell whether it was done."""
        await self.alive.wait()
        deaths = self.deaths
        task = asyncio.ensure_future(self.on_one(use))
        self.under_way.add(task)
        await asyncio.wait([task])
        self.under_way.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and deaths == self.deaths:
            raise error
        return error is None and not task.cancelled()

    async def kill(self) -> None:
        """Kill the server, and whatever would wait for its answers; start it again."""
        self.deaths += 1
        self.alive.clear()
        self.running.process.kill()
        for task in self.under_way:
            task.cancel()
        await asyncio.to_thread(self.running.start_again)
        self.alive.set()

    async def on_one(self, use: Callable[[Client], Awaitable[Any]]) -> Any:
        client = await nats.connect(
            self.running.url, allow_reconnect=False, error_cb=ignore, connect_timeout=PATIENCE_S
        )
        try:
            return await use(client)
        finally:
            await client.close()

    async def settle(self) -> None:
        """Wait until what was deleted is off the disk, and no segment is being written again."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.streams()) > 1 or self.drafts():  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def streams(self) -> list[Path]:
        return list(self.store.glob("jetstream/*/streams/*"))

    def drafts(self) -> list[Path]:
        """Return what housekeeping is writing, or a kill has left of that."""
        return list(self.store.glob("jetstream/**/*.tmp"))

    async def check_files(self) -> None:
        """See that what stayed is there, and nothing else."""
        names = await self.on_one(names_of_streams)
        assert names == ["KEEP"]
        assert not self.gone & set(names)
        await self.on_one(lambda client: check_standing(self, client))
        await self.settle()
        (kept,) = self.streams()
        sizes = [size for each in kept.rglob("*") if (size := size_bytes(each)) is not None]
        assert len(sizes) < 20, sizes
        assert sum(sizes) < STANDING_BYTES_MAX


class Use:
    """One cycle of one client."""

    def __init__(self, churn: Churn, client: Client, name: str, chance: random.Random) -> None:
        self.churn = churn
        self.client = client
        self.js: JetStreamContext = client.jetstream(timeout=PATIENCE_S)
        self.name = name
        self.chance = chance


async def ignore(error: Exception) -> None:
    """Nobody is to hear of a connection that we killed."""


async def remove(client: Client, stream: str) -> None:
    """Delete a stream if it is there."""
    with suppress(NotFoundError):
        await client.jetstream(timeout=PATIENCE_S).delete_stream(stream)


async def names_of_streams(client: Client) -> list[str]:
    return sorted(
        each.config.name for each in await client.jetstream(timeout=PATIENCE_S).streams_info()
    )


async def make_standing(client: Client) -> None:
    config = StreamConfig(
        name="KEEP", subjects=["keep.>"], max_msgs=KEPT, compression="s2", allow_msg_ttl=True
    )
    await client.jetstream(timeout=PATIENCE_S).add_stream(config)
    consumer = ConsumerConfig(durable_name="C", ack_policy="explicit", ack_wait=2)
    await client.jetstream(timeout=PATIENCE_S).add_consumer("KEEP", consumer)


async def use_standing(use: Use) -> None:
    """Store into the stream that stays, some to expire; consume, delete and purge there."""
    js, churn = use.js, use.churn
    pull = await js.pull_subscribe_bind("C", "KEEP")
    for _ in range(20):
        number = churn.stored + 1
        ack = await js.publish("keep.number", b"%d" % number + bytes(500))
        churn.stored = number
        await js.publish("keep.short", bytes(100), headers={"Nats-TTL": f"{TTL_S}s"})
        if use.chance.random() < 0.1:
            await js.purge_stream("KEEP", subject="keep.short")
        if use.chance.random() < 0.1:
            await js.delete_msg("KEEP", ack.seq)
    await ack_some(pull, 20)


async def ack_some(pull: JetStreamContext.PullSubscription, count: int) -> None:
    """Consume what there is, so many at most."""
    with suppress(nats.errors.TimeoutError, asyncio.TimeoutError):
        for message in await pull.fetch(count, timeout=1):
            await message.ack_sync()


async def check_standing(churn: Churn, client: Client) -> None:
    """See that the last message that was acked is there, or a later one."""
    js = client.jetstream(timeout=PATIENCE_S)
    state = (await js.stream_info("KEEP")).state
    assert state.messages <= KEPT
    last = await js.get_last_msg("KEEP", "keep.number")
    assert last.data is not None
    # One of ten was deleted, and one may have been stored without its ack.
    assert int(last.data.rstrip(b"\0")) >= churn.stored - 20
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(NotFoundError):
                await js.get_last_msg("KEEP", "keep.short")
                await asyncio.sleep(0.1)
                continue
            return


async def use_stream(use: Use) -> None:
    """A stream with some limits, messages, and all kinds of consumers."""
    js, name, chance = use.js, use.name, use.chance
    config: dict[str, Any] = chance.choice(
        (
            {"max_msgs": 10},
            {"max_bytes": 20_000},
            {"max_age": 0.5},
            {"max_msgs_per_subject": 1},
            {"retention": "workqueue"},
            {"storage": "memory"},
            {"compression": "s2"},
        )
    )
    await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **config))
    durable = ConsumerConfig(durable_name="D", ack_policy="explicit")
    await js.add_consumer(name, durable)
    pushed = (
        await js.subscribe(f"{name}.>", ordered_consumer=True)
        if "retention" not in config
        else None
    )
    await asyncio.gather(
        *(js.publish(f"{name}.{n % 5}", bytes(chance.randrange(3000))) for n in range(40))
    )
    pull = await js.pull_subscribe_bind("D", name)
    await ack_some(pull, 10)
    if pushed is not None:
        with suppress(nats.errors.TimeoutError, asyncio.TimeoutError):
            await pushed.next_msg(timeout=2)
        await pushed.unsubscribe()
    await js.purge_stream(name, keep=chance.randrange(5))
    if chance.random() < 0.5:
        await js.delete_consumer(name, "D")
    await js.delete_stream(name)


async def use_bucket(use: Use) -> None:
    """A key-value bucket with history, and a watcher."""
    bucket = await use.js.create_key_value(KeyValueConfig(bucket=use.name, history=3, ttl=60))
    watcher = await bucket.watchall()
    for number in range(30):
        await bucket.put(f"k{number % 6}", b"%d" % number)
    assert (await bucket.get("k5")).value == b"29"
    await bucket.delete("k1")
    await bucket.purge("k2")
    await watcher.updates(timeout=PATIENCE_S)
    await watcher.stop()
    await use.js.delete_key_value(use.name)


async def use_objects(use: Use) -> None:
    """An object store, with an object of several chunks."""
    store = await use.js.create_object_store(use.name, ObjectStoreConfig(bucket=use.name))
    data = use.chance.randbytes(300_000)
    for number in range(3):
        await store.put("a" if number < 2 else "b", data)
    assert (await store.get("a")).data == data
    await store.delete("b")
    await use.js.delete_object_store(use.name)


def size_bytes(path: Path) -> int | None:
    """Return how large a file is; None of a directory, and of one that is gone meanwhile."""
    with suppress(FileNotFoundError):
        if path.is_file():
            return path.stat().st_size
    return None


def descriptors(running: ServerProcess) -> int:
    return len(os.listdir(f"/proc/{running.process.pid}/fd"))


# Of a connection that was cut while it was being made, nats-py closes nothing.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed:ResourceWarning"
)
@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 3 + 240)
def test_what_comes_and_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    with ServerProcess(PENSTOCK, "", "-js", "-sd", str(tmp_path)) as running:
        asyncio.run(Churn(running, tmp_path).run())
