"""The event bus while its connection breaks, again and again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until
from tests.servers import Program, ServerProcess

from penstock.bus import (
    BusConfig,
    Envelope,
    EventBus,
    HealthConfig,
    NatsConfig,
    PublisherConfig,
    PublishResult,
)
from penstock.bus.testing import FaultProxy
from penstock.errors import ConnectionLost, RequestTimeout

MESSAGES = 5000
KEYS = 50
CUTS = 5


@pytest.fixture
def server(program: Program, tmp_path: Path) -> Any:
    with ServerProcess(program, f'jetstream {{ store_dir: "{tmp_path}" }}') as server:
        yield server


def of_one_key(number: int) -> Envelope[int]:
    return Envelope(aggregate_id="one", event_type="t", payload=number)


def event(number: int) -> Envelope[int]:
    return Envelope(aggregate_id=f"k{number % KEYS}", event_type="t", payload=number)


@asynchronous
async def test_every_event_is_stored_once_and_handled_in_order(server: ServerProcess) -> None:
    async with FaultProxy(server.url) as proxy:
        config = BusConfig(
            type="nats",
            nats=NatsConfig(urls=(proxy.url,), reconnect_wait=0.01),
            publisher=PublisherConfig(max_pending=1000, publish_timeout=20.0),
        )
        async with EventBus(config) as bus:
            reconnects: list[None] = []
            bus.on_reconnected(lambda: reconnects.append(None))
            handled: list[int] = []

            async def handle(envelope: Envelope[int]) -> None:
                await asyncio.sleep(0.001)
                handled.append(envelope.payload)

            await bus.subscribe_envelope("t", handle)
            for number in range(MESSAGES):
                await bus.publish_envelope("t", event(number))
                if number % (MESSAGES // CUTS) == MESSAGES // CUTS // 2:
                    proxy.cut()
                if number % 100 == 0:
                    await asyncio.sleep(0.002)
            await bus.flush()
            await until(lambda: len(handled) >= MESSAGES, 30)
            stored = [one.payload async for _, one in bus.replay("t", payload_type=int)]

            assert CUTS == len(reconnects) == bus.metrics.reconnects_total
            assert list(range(MESSAGES)) == stored
            assert MESSAGES == len(handled)
            for key in range(KEYS):
                assert list(range(key, MESSAGES, KEYS)) == [n for n in handled if n % KEYS == key]


@asynchronous
async def test_without_event_ids_what_may_be_lost_is_reported(server: ServerProcess) -> None:
    async with FaultProxy(server.url) as proxy:
        config = BusConfig(
            type="nats",
            nats=NatsConfig(urls=(proxy.url,), reconnect_wait=0.01),
            publisher=PublisherConfig(deduplicate=False),
        )
        async with EventBus(config) as bus:
            await bus.configure_topic("t")
            results: list[PublishResult] = []
            bus.on_published(results.append)
            proxy.stall()
            for number in range(10):
                await bus.publish_envelope("t", event(number))
            await asyncio.sleep(0)
            proxy.cut()
            proxy.heal()
            await until(lambda: len(results) == 10)
            await until(lambda: bus.health().connected)
            await bus.publish_envelope_sync("t", event(10))

            assert all(isinstance(result.error, ConnectionLost) for result in results)
            assert 10 == bus.metrics.publish_failed_total


@asynchronous
async def test_an_ack_that_does_not_come_is_reported_in_time(server: ServerProcess) -> None:
    async with FaultProxy(server.url) as proxy:
        config = BusConfig(
            type="nats",
            nats=NatsConfig(urls=(proxy.url,)),
            publisher=PublisherConfig(publish_timeout=0.2),
            shutdown_timeout=0.5,
        )
        async with EventBus(replace(config)) as bus:
            await bus.configure_topic("t")
            results: list[PublishResult] = []
            bus.on_published(results.append)
            proxy.stall()
            await bus.publish_envelope("t", event(1))
            await until(lambda: results)
            proxy.heal()

            assert isinstance(results[0].error, RequestTimeout)


@asynchronous
async def test_an_event_that_fails_takes_those_behind_it_along(server: ServerProcess) -> None:
    """Stored, they would leave a hole in their aggregate."""
    async with FaultProxy(server.url) as proxy:
        config = BusConfig(
            type="nats",
            namespace="holes",
            nats=NatsConfig(urls=(proxy.url,)),
            publisher=PublisherConfig(publish_timeout=0.5),
            shutdown_timeout=0.5,
        )
        async with EventBus(config) as bus:
            await bus.publish_envelope_sync("t", event(0))
            results: list[PublishResult] = []
            bus.on_published(results.append)
            proxy.stall()
            proxy.cut()
            await until(lambda: not bus.health().connected)
            await bus.publish_envelope("t", of_one_key(1))
            await asyncio.sleep(0.4)  # so that the second would have more time than the first
            await bus.publish_envelope("t", of_one_key(2))
            await until(lambda: len(results) == 2)
            assert not any(result.success for result in results)
            assert "an earlier event" in str(results[1].error)


@asynchronous
async def test_heartbeats_that_stay_out_raise_the_alarm_step_by_step(
    server: ServerProcess,
) -> None:
    async with FaultProxy(server.url) as proxy:
        config = BusConfig(
            type="nats",
            nats=NatsConfig(urls=(proxy.url,)),
            health=HealthConfig(
                interval=0.01,
                timeout=0.05,
                warning_misses=1,
                error_misses=2,
                critical_misses=4,
            ),
        )
        async with EventBus(config) as bus:
            heard: list[str] = []
            await bus.beat()
            proxy.stall()
            bus.on_health(lambda heartbeat: heard.append(heartbeat.severity))
            await until(lambda: len(heard) == 3)
            proxy.heal()
            await until(lambda: len(heard) == 4)

            assert ["warning", "error", "critical", "healthy"] == heard
