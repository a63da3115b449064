"""The event bus's contract on a cluster of three nats-servers, every stream on all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from tests.aio import asynchronous, until
from tests.cluster import NODES, cluster_of, elected
from tests.servers import ServerProcess

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

MESSAGES = 2000


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[ServerProcess]]:
    """Three servers that know each other and have elected a leader."""
    with ExitStack() as stack:
        servers = cluster_of(NODES, stack)
        asyncio.run(elected(servers[0].url))
        yield servers


def config(servers: list[ServerProcess]) -> BusConfig:
    jetstream = JetStreamConfig(stream=StreamConfig(replicas=NODES), request_timeout=10.0)
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
        await elected(servers[0].url)
        base = replace(
            config(servers), namespace="lost", publisher=PublisherConfig(publish_timeout=30.0)
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


@pytest.mark.slow
@asynchronous
async def test_a_process_that_stops_when_the_leader_of_its_consumer_dies_repeats_nothing() -> None:
    """Its last ack went to a server that is gone, and its own connection has not noticed."""
    with ExitStack() as stack:
        servers = cluster_of(NODES, stack)
        await elected(servers[0].url)
        numbers: list[int] = []
        base = replace(
            config(servers), namespace="led", publisher=PublisherConfig(publish_timeout=30.0)
        )

        async def handle(envelope: Envelope[int]) -> None:
            numbers.append(envelope.payload)
            if envelope.payload == 0:
                leader.process.kill()
                leader.process.wait()

        def opened() -> EventBus:
            bus = EventBus(base)
            bus.on("t")(handle)
            return bus

        async def publish(bus: EventBus, number: int) -> None:
            await bus.publish_envelope_sync(
                "t", Envelope(aggregate_id="one", event_type="t", payload=number)
            )
            await until(lambda: number in numbers, 40)

        async with opened() as bus:
            await publish(bus, -1)
            leader = await _leader(bus, servers)
        servers.remove(leader)
        base = replace(base, nats=replace(base.nats, urls=config(servers).nats.urls))
        for number in range(2):
            async with opened() as bus:
                await publish(bus, number)
    assert [-1, 0, 1] == numbers


@pytest.mark.slow
@asynchronous
async def test_acks_that_died_with_a_leader_are_repeated_though_a_later_one_is_confirmed() -> None:
    with ExitStack() as stack:
        servers = cluster_of(NODES, stack)
        await elected(servers[0].url)
        numbers: list[int] = []
        may_end = asyncio.Event()
        base = replace(config(servers), namespace="confirmed")

        async def handle(envelope: Envelope[int]) -> None:
            numbers.append(envelope.payload)
            if envelope.payload >= 0:
                await may_end.wait()

        def opened() -> EventBus:
            bus = EventBus(base)
            bus.on("t")(handle)
            return bus

        async with opened() as bus:
            await bus.publish_envelope_sync("t", _event(-1))
            await until(lambda: numbers, 40)
            leader = await _leader(bus, servers)
        servers.remove(leader)
        base = replace(base, nats=replace(base.nats, urls=config(servers).nats.urls))
        async with opened() as bus:
            await bus.publish_envelope_batch("t", [_event(number) for number in range(2)])
            await until(lambda: len(numbers) == 3, 40)
            leader.process.kill()
            leader.process.wait()
            may_end.set()
            await until(lambda: bus.metrics.handled_total == 2, 40)
            await until(lambda: not bus.engine.untold, 60)  # the later one, by the new leader
        async with opened() as bus:
            await bus.publish_envelope_sync("t", _event(2))
            await until(lambda: 2 in numbers, 40)
    assert [-1, 0, 1, 2] == sorted(numbers)


async def _leader(bus: EventBus, servers: list[ServerProcess]) -> ServerProcess:
    """Return the server that leads the consumer of `t`."""
    consumers = bus.engine.client.jetstream().consumers  # type: ignore[attr-defined]
    info = await consumers.info(bus.config.namespace, f"{bus.config.service}+t")
    return servers[int(info["cluster"]["leader"][1:])]


def _event(number: int) -> Envelope[int]:
    return Envelope(aggregate_id=f"k{number}", event_type="t", payload=number)


def _in_use(bus: EventBus, servers: list[ServerProcess]) -> ServerProcess:
    port = int(bus.engine.client.server.rpartition(":")[2])  # type: ignore[attr-defined]
    return next(server for server in servers if server.port == port)
