"""The event bus's contract on a cluster of three nats-servers, every stream on all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.aio import asynchronous, until
from tests.cluster import NODES, cluster_of
from tests.servers import ServerProcess

import penstock
from penstock.bus import (
    BusConfig,
    Envelope,
    EventBus,
    JetStreamConfig,
    NatsConfig,
    PublisherConfig,
    StreamConfig,
)
from penstock.bus.contract import SCENARIOS, Scenario, World
from penstock.errors import PenstockError

MESSAGES = 2000


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[ServerProcess]]:
    """Three servers that know each other and have elected a leader."""
    with ExitStack() as stack:
        servers = cluster_of(NODES, stack)
        asyncio.run(_elected(servers[0].url))
        yield servers


def config(servers: list[ServerProcess]) -> BusConfig:
    jetstream = JetStreamConfig(stream=StreamConfig(replicas=NODES), request_timeout_s=10.0)
    urls = tuple(server.url for server in servers)
    return BusConfig(type="nats", nats=NatsConfig(urls=urls, jetstream=jetstream))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_a_cluster(scenario: Scenario, cluster: list[ServerProcess]) -> None:
    asynchronous(scenario)(World(config(cluster)))


@pytest.mark.slow
@asynchronous
async def test_the_bus_outlives_a_server_of_the_cluster() -> None:
    with ExitStack() as stack:
        servers = cluster_of(NODES, stack)
        await _elected(servers[0].url)
        base = replace(
            config(servers), namespace="lost", publisher=PublisherConfig(ack_timeout_s=30.0)
        )
        async with EventBus(base) as bus:
            numbers: list[int] = []

            async def handle(envelope: Envelope[int]) -> None:
                numbers.append(envelope.payload)

            await bus.subscribe_envelope("t", handle)
            for number in range(MESSAGES):
                envelope = Envelope(aggregate_id="one", event_type="t", payload=number)
                await bus.publish_envelope("t", envelope)
                if number == MESSAGES // 2:
                    await until(lambda: numbers)
                    _in_use(bus, servers).process.kill()
            await until(lambda: len(numbers) >= MESSAGES, 40)

            assert list(range(MESSAGES)) == list(dict.fromkeys(numbers))
            assert 0 == bus.metrics.publish_failed_total


def _in_use(bus: EventBus, servers: list[ServerProcess]) -> ServerProcess:
    port = int(bus.engine.client.server.rpartition(":")[2])  # type: ignore[attr-defined]
    return next(server for server in servers if server.port == port)


async def _elected(url: str) -> None:
    """Return once a stream can be made."""
    deadline_s = time.monotonic() + 30
    async with await penstock.connect(url) as client:
        jetstream = client.jetstream(request_timeout_s=1.0)
        while True:
            try:
                await jetstream.streams.create("ready", subjects=["ready"], num_replicas=NODES)
                await jetstream.streams.delete("ready")
                return
            except PenstockError:
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.1)
