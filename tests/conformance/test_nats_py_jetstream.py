"""JetStream, key-value and object stores of the Python client, on the real server and on ours."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api
from nats.js.errors import (
    BadRequestError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoKeysError,
    NotFoundError,
    ObjectNotFoundError,
)
from nats.micro import add_service
from tests.aio import until
from tests.conformance.natspy import first_updates, listed
from tests.conftest import Servers
from tests.servers import DEADLINE_S, Program, ServerProcess

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

NUMBERS = itertools.count()


@pytest.fixture
def server(program: Program, servers: Servers) -> ServerProcess:
    return servers(program, "jetstream { store_dir: store }")


@pytest.fixture
def name() -> str:
    """Return a name that no other test uses: they share a server."""
    return f"N{next(NUMBERS)}"


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 3 * DEADLINE_S)

    asyncio.run(bounded())
    gc.collect()


@asynccontextmanager
async def connected(server: ServerProcess) -> AsyncIterator[tuple[Client, JetStreamContext]]:
    client = await nats.connect(server.url)
    try:
        yield client, client.jetstream()
    finally:
        await client.close()


async def fill(js: JetStreamContext, name: str, count: int, **config: Any) -> list[bytes]:
    """Make a stream on `<name>.>` with so many messages; return their payloads."""
    await js.add_stream(name=name, subjects=[f"{name}.>"], **config)
    payloads = [b"%d" % number for number in range(count)]
    for number, payload in enumerate(payloads):
        await js.publish(f"{name}.{number % 3}", payload)
    return payloads


async def next_messages(subscription: Any, count: int) -> list[Msg]:
    return [await subscription.next_msg(timeout=DEADLINE_S) for _ in range(count)]


def test_a_pull_subscription_fetches_in_batches(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            payloads = await fill(js, name, 25)
            subscription = await js.pull_subscribe(f"{name}.>", "durable")

            received: list[Msg] = []
            while len(received) < 25:
                received += await subscription.fetch(10, timeout=1)
            for message in received:
                await message.ack_sync()

            assert payloads == [message.data for message in received]
            info = await subscription.consumer_info()
            assert (25, 0, 0) == (
                info.ack_floor.stream_seq,
                info.num_ack_pending,
                info.num_pending,
            )
            with pytest.raises(nats.errors.TimeoutError):
                await subscription.fetch(1, timeout=0.2)

    run(scenario)


def test_a_fetch_with_heartbeats_waits_for_what_comes(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            await fill(js, name, 0)
            subscription = await js.pull_subscribe(f"{name}.>", "durable")

            fetch = asyncio.create_task(subscription.fetch(1, timeout=5, heartbeat=0.1))
            await asyncio.wait([fetch], timeout=0.5)
            await js.publish(f"{name}.a", b"1")

            assert [b"1"] == [message.data for message in await fetch]

    run(scenario)


def test_what_is_not_acked_comes_again(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            await fill(js, name, 3)
            config = api.ConsumerConfig(ack_wait=0.3, max_deliver=3)
            subscription = await js.pull_subscribe(f"{name}.>", "durable", config=config)

            first, second, third = await subscription.fetch(3, timeout=1)
            await first.ack()
            await second.nak()
            await third.in_progress()
            (again,) = await subscription.fetch(1, timeout=1)
            await again.term()
            (late,) = await subscription.fetch(1, timeout=2)

            assert (b"1", 2) == (again.data, again.metadata.num_delivered)
            assert (b"2", 2) == (late.data, late.metadata.num_delivered)
            await late.ack_sync()
            assert 3 == (await subscription.consumer_info()).ack_floor.stream_seq

    run(scenario)


def test_a_push_subscription_acks_by_itself(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            payloads = await fill(js, name, 20)
            received: list[bytes] = []

            async def on_message(message: Msg) -> None:
                received.append(message.data)

            subscription = await js.subscribe(f"{name}.>", cb=on_message, durable="push")
            while True:
                info = await subscription.consumer_info()
                if info.ack_floor.stream_seq == 20:
                    break
                await asyncio.sleep(0.01)

            assert payloads == received
            assert info.push_bound

    run(scenario)


def test_members_of_a_queue_share_the_messages(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            await fill(js, name, 0)
            members: list[list[bytes]] = [[], [], []]

            def keep(received: list[bytes]) -> Callable[[Msg], Awaitable[None]]:
                async def on_message(message: Msg) -> None:
                    received.append(message.data)

                return on_message

            for received in members:
                await js.subscribe(f"{name}.>", queue="workers", cb=keep(received))
            payloads = [b"%d" % number for number in range(60)]
            for payload in payloads:
                await js.publish(f"{name}.a", payload)
            await until(lambda: sum(map(len, members)) == 60)

            assert sorted(payloads) == sorted(itertools.chain(*members))
            assert all(members)

    run(scenario)


def test_an_ordered_consumer_sees_every_message_once(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            payloads = await fill(js, name, 100)
            subscription = await js.subscribe(f"{name}.>", ordered_consumer=True)

            received = await next_messages(subscription, 100)

            assert payloads == [message.data for message in received]

    run(scenario)


def test_flow_control_lets_a_large_stream_through(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            await js.add_stream(name=name, subjects=[name])
            for _ in range(200):
                await js.publish(name, bytes(50_000))
            subscription = await js.subscribe(
                name, ordered_consumer=True, pending_bytes_limit=1 << 30, idle_heartbeat=0.5
            )

            received = await next_messages(subscription, 200)

            assert list(range(1, 201)) == [each.metadata.sequence.consumer for each in received]

    run(scenario)


def test_a_filter_and_a_start_choose_what_is_delivered(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            await fill(js, name, 9)
            filtered = await js.subscribe(f"{name}.1", ordered_consumer=True)
            last = await js.subscribe(
                f"{name}.>", deliver_policy=api.DeliverPolicy.LAST_PER_SUBJECT
            )
            from_seven = await js.subscribe(
                f"{name}.>",
                config=api.ConsumerConfig(
                    deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=7
                ),
            )

            assert [b"1", b"4", b"7"] == [m.data for m in await next_messages(filtered, 3)]
            assert [b"6", b"7", b"8"] == [m.data for m in await next_messages(last, 3)]
            assert [b"6", b"7", b"8"] == [m.data for m in await next_messages(from_seven, 3)]

    run(scenario)


def test_only_headers_come_where_only_headers_are_asked_for(
    server: ServerProcess, name: str
) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            await js.add_stream(name=name, subjects=[name])
            await js.publish(name, b"hello", headers={"Key": "value"})
            subscription = await js.subscribe(
                name, config=api.ConsumerConfig(headers_only=True, ack_policy=api.AckPolicy.NONE)
            )

            (message,) = await next_messages(subscription, 1)

            assert (b"", "value", "5") == (
                message.data,
                message.headers["Key"],
                message.headers["Nats-Msg-Size"],
            )

    run(scenario)


def test_a_work_queue_is_empty_when_all_is_acked(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            await fill(js, name, 10, retention=api.RetentionPolicy.WORK_QUEUE)
            subscription = await js.pull_subscribe(f"{name}.>", "worker")
            with pytest.raises(BadRequestError) as refused:
                await js.pull_subscribe(f"{name}.>", "another")

            for message in await subscription.fetch(10, timeout=1):
                await message.ack_sync()

            assert 10100 == refused.value.err_code
            assert 0 == (await js.stream_info(name)).state.messages

    run(scenario)


def test_a_message_stays_until_all_who_are_interested_acked(
    server: ServerProcess, name: str
) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            await js.add_stream(name=name, subjects=[name], retention=api.RetentionPolicy.INTEREST)
            one = await js.pull_subscribe(name, "one")
            two = await js.pull_subscribe(name, "two")
            await js.publish(name, b"hello")
            counts = []
            for subscription in (one, two):
                (message,) = await subscription.fetch(1, timeout=1)
                await message.ack_sync()
                counts.append((await js.stream_info(name)).state.messages)

            assert [1, 0] == counts

    run(scenario)


def test_consumers_are_listed_and_deleted(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            await fill(js, name, 1)
            for durable in ("b", "a"):
                await js.add_consumer(name, durable_name=durable, ack_policy="explicit")

            assert ["a", "b"] == [info.name for info in await js.consumers_info(name)]
            assert await js.delete_consumer(name, "a")
            with pytest.raises(NotFoundError):
                await js.consumer_info(name, "a")

    run(scenario)


def test_keys_have_values_and_a_history(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            kv = await js.create_key_value(bucket=name, history=5)
            assert 1 == await kv.put("color", b"red")
            assert 2 == await kv.update("color", b"green", last=1)
            with pytest.raises(KeyWrongLastSequenceError):
                await kv.update("color", b"blue", last=1)
            assert b"green" == (await kv.get("color")).value
            assert b"red" == (await kv.get("color", revision=1)).value
            await kv.delete("color")
            with pytest.raises(KeyNotFoundError):
                await kv.get("color")
            assert 4 == await kv.create("color", b"black")
            with pytest.raises(KeyNotFoundError):
                await kv.get("size")

            history = await listed(lambda: kv.history("color"))

            assert [(1, b"red"), (2, b"green"), (3, b""), (4, b"black")] == [
                (entry.revision, entry.value or b"") for entry in history
            ]

    run(scenario)


def test_keys_are_listed_watched_and_purged(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            kv = await js.create_key_value(bucket=name, history=3)
            with pytest.raises(NoKeysError):
                await kv.keys()
            for number in range(5):
                await kv.put(f"key.{number}", b"%d" % number)
            await kv.put("other", b"x")
            assert 6 == len(await listed(kv.keys))

            watcher = await kv.watch("key.*")
            seen = await first_updates(watcher, 5)
            await kv.put("key.2", b"new")
            await kv.purge("key.3")
            changes = [await watcher.updates(timeout=DEADLINE_S) for _ in range(2)]
            await watcher.stop()

            assert [f"key.{number}" for number in range(5)] == [each.key for each in seen]
            assert [("key.2", None), ("key.3", "PURGE")] == [
                (each.key, each.operation) for each in changes
            ]
            await kv.purge_deletes(olderthan=-1)
            assert 5 == len(await listed(kv.keys))
            status = await kv.status()
            assert (name, 3, 6) == (status.bucket, status.history, status.values)

    run(scenario)


def test_a_watch_of_an_empty_bucket_says_so(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            kv = await js.create_key_value(bucket=name)
            watcher = await kv.watchall()

            assert await watcher.updates(timeout=DEADLINE_S) is None
            await kv.put("a", b"1")
            entry = await watcher.updates(timeout=DEADLINE_S)

            assert entry is not None
            assert ("a", b"1") == (entry.key, entry.value)
            await js.delete_key_value(name)

    run(scenario)


def test_an_object_is_stored_in_chunks(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (_, js):
            store = await js.create_object_store(bucket=name)
            content = bytes(range(256)) * 4096
            info = await store.put("file", content)

            found = await store.get("file")

            assert content == found.data
            assert (len(content), 8) == (info.size, info.chunks)
            assert ["file"] == [each.name for each in await store.list()]
            await store.delete("file")
            with pytest.raises(ObjectNotFoundError):
                await store.get("file")

    run(scenario)


def test_a_service_answers_and_is_found(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (client, _):
            service = await add_service(client, name=name, version="1.0.0")

            async def double(request: Any) -> None:
                await request.respond(request.data * 2)

            await service.add_endpoint(name="double", subject=f"{name}.double", handler=double)

            answer = await client.request(f"{name}.double", b"ab", timeout=DEADLINE_S)
            ping = await client.request(f"$SRV.PING.{name}", timeout=DEADLINE_S)

            assert b"abab" == answer.data
            assert name.encode() in ping.data
            await service.stop()

    run(scenario)


def test_a_consumer_that_nobody_uses_goes_away(server: ServerProcess, name: str) -> None:
    async def scenario() -> None:
        async with connected(server) as (client, js):
            await fill(js, name, 1)
            gone = asyncio.Event()

            async def on_deleted(message: Msg) -> None:
                gone.set()

            advisory = f"$JS.EVENT.ADVISORY.CONSUMER.DELETED.{name}.idle"
            await client.subscribe(advisory, cb=on_deleted)
            await js.add_consumer(
                name,
                name="idle",
                ack_policy="explicit",
                inactive_threshold=timedelta(seconds=0.2).total_seconds(),
            )

            await asyncio.wait_for(gone.wait(), DEADLINE_S)

            assert [] == await js.consumers_info(name)

    run(scenario)
