"""The event bus, held to its contract on every engine."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest
from tests.aio import asynchronous
from tests.conftest import Servers
from tests.servers import NATS_SERVER, ServerProcess

import penstock
from penstock.bus import (
    BusConfig,
    EmbeddedConfig,
    Envelope,
    EventBus,
    JetStreamConfig,
    NatsConfig,
    StreamConfig,
)
from penstock.bus.contract import SCENARIOS, Scenario, World

JETSTREAM = "jetstream { store_dir: store }"


@pytest.fixture
def server(servers: Servers) -> ServerProcess:
    return servers(NATS_SERVER, JETSTREAM)


def config(server: ServerProcess) -> BusConfig:
    # nats-server sets aside as much disk as a stream may grow to.
    jetstream = JetStreamConfig(stream=StreamConfig(max_bytes=0))
    return BusConfig(type="nats", nats=NatsConfig(urls=(server.url,), jetstream=jetstream))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_nats_server(scenario: Scenario, server: ServerProcess) -> None:
    run(scenario, config(server))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_embedded(scenario: Scenario, tmp_path: Path) -> None:
    run(scenario, BusConfig(type="embedded", embedded=EmbeddedConfig(store_dir=str(tmp_path))))


def run(scenario: Scenario, base: BusConfig) -> None:
    asynchronous(scenario)(World(base))
    gc.collect()


@asynchronous
async def test_publishing_asks_the_server_nothing(server: ServerProcess) -> None:
    base = replace(config(server), namespace="quiet")
    async with await penstock.connect(server.url) as observer, EventBus(base) as bus:
        await bus.configure_topic("a")
        await bus.configure_topic("b", max_msgs=1000)
        requests: list[str] = []
        await observer.subscribe("$JS.API.>", callback=lambda m: requests.append(m.subject))
        await observer.flush()
        for number in range(100):
            envelope = Envelope(aggregate_id="k", event_type="t", payload=number)
            await bus.publish_envelope(("a", "b", "c")[number % 2], envelope)
            await bus.publish_envelope_sync("a", envelope)
        await bus.publish_envelope_batch("b", [envelope])
        await bus.flush()
        await observer.flush()

        # It looks for streams of others now and then, whatever is published.
        assert set(requests) <= {"$JS.API.STREAM.NAMES"}


@asynchronous
async def test_a_message_carries_no_header_unless_it_is_asked_for(server: ServerProcess) -> None:
    base = replace(config(server), namespace="bare")
    base = replace(base, publisher=replace(base.publisher, deduplicate=False))
    async with await penstock.connect(server.url) as observer, EventBus(base) as bus:
        await bus.configure_topic("a")
        async with await observer.subscribe("bare.>") as stored:
            await observer.flush()
            await bus.publish_envelope_sync(
                "a", Envelope(aggregate_id="k", event_type="t", payload=1)
            )
            message = await stored.next(timeout_s=5)

            assert [] == message.header_pairs


def test_a_bus_is_opened_from_what_names_it() -> None:
    assert ("nats", ("nats://a:1", "nats://b:2")) == (
        EventBus.open("nats://a:1,nats://b:2").config.type,
        EventBus.open("nats://a:1,nats://b:2").config.nats.urls,
    )
    assert "/data" == EventBus.open("embedded:/data").config.embedded.store_dir
    assert "mine" == EventBus.open("embedded:", service="mine").config.service
