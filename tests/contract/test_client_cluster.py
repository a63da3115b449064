"""Our client on a cluster of three real nats-servers, one of which dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest
from tests.aio import asynchronous, until
from tests.cluster import NODES, cluster_of
from tests.servers import ServerProcess

import penstock
from penstock.client import Client, JetStream
from penstock.errors import ClientError, JetStreamError

MESSAGES = 6000


@pytest.fixture
def cluster() -> Iterator[list[ServerProcess]]:
    """Three servers that know each other, with JetStream."""
    with ExitStack() as stack:
        yield cluster_of(NODES, stack)


async def patiently(call: object, *arguments: object, **settings: object) -> None:
    """Repeat a call until the cluster has a leader to answer it."""
    async with asyncio.timeout(30):
        while True:
            try:
                await call(*arguments, **settings)  # type: ignore[operator]
                return
            except (ClientError, JetStreamError):
                await asyncio.sleep(0.1)


async def replicated_stream(client: Client) -> JetStream:
    jetstream = client.jetstream(ack_timeout_s=2.0)
    await patiently(jetstream.streams.create, "S", subjects=["s.>"], num_replicas=NODES)
    await patiently(
        jetstream.consumers.create_or_update,
        "S",
        durable_name="C",
        ack_policy="explicit",
        ack_wait=timedelta(seconds=2),
    )
    return jetstream


async def publish_all(jetstream: JetStream) -> None:
    """Publish every message, and again those whose outcome is unknown."""
    missing = list(range(MESSAGES))
    while missing:
        futures = []
        for number in missing:
            future = await jetstream.publish_async("s.a", b"%d" % number, message_id=str(number))
            futures.append(future)
            if number % 100 == 0:
                await asyncio.sleep(0.005)
        results = await asyncio.gather(*futures, return_exceptions=True)
        pairs = zip(missing, results, strict=True)
        missing = [number for number, result in pairs if isinstance(result, Exception)]


@asynchronous
async def test_a_client_learns_of_the_other_servers(cluster: list[ServerProcess]) -> None:
    async with await penstock.connect(cluster[0].url) as client:
        await until(lambda: len(client.connection.pool) == NODES)

        ports = {server.port for server in client.connection.pool.servers}
        assert {server.port for server in cluster} == ports


@pytest.mark.slow
@asynchronous
async def test_losing_the_server_in_use_loses_no_message(cluster: list[ServerProcess]) -> None:
    settings = {"reconnect_wait_s": 0.02, "reconnect_attempts_max": -1}
    async with (
        await penstock.connect(cluster[0].url, **settings) as publisher,
        await penstock.connect(cluster[0].url, **settings) as subscriber,
    ):
        jetstream = await replicated_stream(publisher)
        await until(lambda: len(subscriber.connection.pool) == NODES)
        seen: set[int] = set()

        async def consume() -> None:
            consumer = subscriber.jetstream().pull_consumer("S", "C")
            async with consumer.consume(heartbeat_s=0.5, gone_s_max=30) as messages:
                async for message in messages:
                    seen.add(int(message.payload))
                    await message.ack()
                    if len(seen) == MESSAGES:
                        return

        consuming = asyncio.ensure_future(consume())
        publishing = asyncio.ensure_future(publish_all(jetstream))
        await until(lambda: len(seen) > MESSAGES // 10, timeout_s=30)
        cluster[0].process.kill()
        await asyncio.gather(consuming, publishing)

        assert (1, 1) == (publisher.connection.reconnects, subscriber.connection.reconnects)
        info = await jetstream.streams.info("S")
        assert MESSAGES == info["state"]["messages"]


@pytest.mark.slow
@asynchronous
async def test_an_ordered_consumer_outlives_the_server_it_was_on(
    cluster: list[ServerProcess],
) -> None:
    async with await penstock.connect(
        cluster[0].url, reconnect_wait_s=0.02, reconnect_attempts_max=-1
    ) as client:
        jetstream = await replicated_stream(client)
        await publish_all(jetstream)
        await until(lambda: len(client.connection.pool) == NODES)
        received = []
        async with jetstream.ordered_consumer("S") as messages:
            async for message in messages:
                received.append(message.metadata.stream_sequence)
                if len(received) == MESSAGES // 2:
                    cluster[0].process.kill()
                if len(received) == MESSAGES:
                    break

        assert list(range(1, MESSAGES + 1)) == received
