"""The lines of docs/concepts/ordering.md that speak of connections and of shared work."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until

from penstock.bus import BusConfig, ConsumerConfig, Envelope, EventBus, JetStreamConfig, NatsConfig
from penstock.bus.engine import ReplayFrom
from penstock.bus.testing import FaultProxy, PenstockServer
from penstock.errors import ConnectionLost

KEYS, EVENTS = 10, 1000
RESTART_S = 6.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockServer]:
    with PenstockServer(tmp_path_factory.mktemp("server")) as server:
        yield server


def config(url: str, **consumer: Any) -> BusConfig:
    jetstream = JetStreamConfig(consumer=ConsumerConfig(**{"ack_wait": 1.0} | consumer))
    nats = NatsConfig(urls=(url,), jetstream=jetstream, reconnect_wait=0.01)
    return BusConfig(type="nats", namespace=f"o{os.urandom(6).hex()}", nats=nats)


def event(number: int) -> Envelope[Any]:
    return Envelope(aggregate_id=f"k{number % KEYS}", event_type="t", payload=number)


class Seen:
    """A handler that remembers what came, by key."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[int]] = {f"k{key}": [] for key in range(KEYS)}
        self.count = 0

    async def __call__(self, envelope: Envelope[Any]) -> None:
        self.by_key[envelope.aggregate_id].append(envelope.payload)
        self.count += 1


def in_order(events: int = EVENTS) -> dict[str, list[int]]:
    return {f"k{key}": list(range(key, events, KEYS)) for key in range(KEYS)}


@asynchronous
async def test_cuts_while_publishing_lose_repeat_and_reorder_nothing(
    server: PenstockServer,
) -> None:
    async with FaultProxy(server.url) as proxy, EventBus(config(proxy.url)) as bus:
        await bus.configure_topic("orders")
        for number in range(EVENTS):
            await bus.publish_envelope("orders", event(number))
            if number % 200 == 100:
                proxy.cut()
        await bus.flush()
        stored = [envelope.payload async for _, envelope in bus.replay("orders")]

    assert list(range(EVENTS)) == stored
    assert proxy.accepted > 3


async def restart(server: PenstockServer) -> None:
    await asyncio.sleep(RESTART_S)  # the time that it takes is what this is about
    await asyncio.to_thread(server.start)


@asynchronous
async def test_an_outage_as_long_as_a_restart_costs_those_who_do_not_wait_only_time(
    tmp_path: Path,
) -> None:
    with PenstockServer(tmp_path) as server:
        async with EventBus.open(server.url) as bus:
            await bus.configure_topic("orders")
            failures: list[Any] = []
            bus.on_published(lambda one: one.success or failures.append(one))
            for number in range(EVENTS // 4):
                await bus.publish_envelope("orders", event(number))
            server.kill()
            restarting = asyncio.ensure_future(restart(server))
            for number in range(EVENTS // 4, EVENTS):
                await bus.publish_envelope("orders", event(number))
            await restarting
            await bus.flush()
            stored = [envelope.payload async for _, envelope in bus.replay("orders")]

    assert (list(range(EVENTS)), []) == (stored, failures)


@asynchronous
async def test_cuts_while_handling_lose_repeat_and_reorder_nothing(server: PenstockServer) -> None:
    seen = Seen()
    async with FaultProxy(server.url) as proxy, EventBus(config(proxy.url)) as bus:
        await bus.publish_envelope_batch("orders", [event(n) for n in range(EVENTS)])
        await bus.subscribe_envelope("orders", seen)
        for aim in range(100, EVENTS, 200):
            await until(lambda aim=aim: seen.count >= aim, 30)
            proxy.cut()
        await until(lambda: seen.count >= EVENTS, 30)
        await until(lambda: bus.health().in_flight == 0)

    assert in_order() == seen.by_key


@asynchronous
async def test_health_speaks_of_an_outage_only_while_it_lasts(tmp_path: Path) -> None:
    with PenstockServer(tmp_path) as server:
        async with EventBus(config(server.url)) as bus:
            server.kill()
            await until(lambda: bus.health().disconnected_s > 0)
            assert bus.health().last_error
            server.start()
            await until(lambda: bus.health().connected)
            assert (bus.health().disconnected_s, bus.health().last_error) == (0.0, "")

        assert not bus.health().connected
        assert (bus.health().disconnected_s, bus.health().last_error) == (0.0, "")


@asynchronous
async def test_lost_acks_of_handlers_repeat_nothing_in_one_process(server: PenstockServer) -> None:
    seen = Seen()
    async with FaultProxy(server.url) as proxy, EventBus(config(proxy.url)) as bus:
        await bus.publish_envelope_batch("orders", [event(n) for n in range(100)])
        fault = proxy.drop("$JS.ACK.>", count=10)
        await bus.subscribe_envelope("orders", seen)
        await until(lambda: seen.count >= 100 and fault.hits == 10)
        async with asyncio.timeout(20):
            while (await bus.backlog()).messages:  # noqa: ASYNC110  (the server knows)
                await asyncio.sleep(0.05)

    assert in_order(100) == seen.by_key


@asynchronous
async def test_what_is_finished_while_the_server_is_away_is_not_handled_again(
    tmp_path: Path,
) -> None:
    """The service is stopped while its server restarts."""
    with PenstockServer(tmp_path) as server:
        settings = config(server.url)
        begun, goes_on = [], asyncio.Event()

        async def handle(envelope: Envelope[Any]) -> None:
            begun.append(envelope.payload)
            await goes_on.wait()

        async with EventBus(settings) as bus:
            await bus.publish_envelope_batch("orders", [event(n) for n in range(2 * KEYS)])
            await bus.subscribe_envelope("orders", handle)
            await until(lambda: begun and bus.health().in_flight == 2 * KEYS)
            server.kill()
            await until(lambda: not bus.health().connected)
            closing = asyncio.ensure_future(bus.close())
            goes_on.set()
            await until(lambda: bus.health().in_flight == 0)
            assert not closing.done()
            server.start()
            await closing
        async with EventBus(settings) as bus:
            await bus.subscribe_envelope("orders", handle)
            await until(lambda: len(begun) >= 2 * KEYS)
            await bus.drain()

    assert list(range(2 * KEYS)) == sorted(begun)


@asynchronous
async def test_a_server_that_stays_away_is_waited_for_and_what_comes_again_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PenstockServer(tmp_path) as server:
        goes_on, seen = asyncio.Event(), Seen()

        async def handle(envelope: Envelope[Any]) -> None:
            await seen(envelope)
            await goes_on.wait()

        async with EventBus(replace(config(server.url), shutdown_timeout=1.0)) as bus:
            await bus.publish_envelope_batch("orders", [event(n) for n in range(KEYS)])
            await bus.subscribe_envelope("orders", handle)
            await until(lambda: seen.count and bus.health().in_flight == KEYS)
            server.kill()
            await until(lambda: not bus.health().connected)
            goes_on.set()
            await until(lambda: bus.health().in_flight == 0)

    assert f"that {KEYS} events were handled, so they may come again" in caplog.text


def limit_files(server: PenstockServer, size: int) -> None:
    """Let the server's files grow to a size, and no further."""
    assert server.process is not None
    limits = (size, resource.RLIM_INFINITY)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)


@asynchronous
async def test_acks_that_the_server_cannot_store_are_counted_when_a_bus_closes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PenstockServer(tmp_path) as server:
        settings = replace(config(server.url), shutdown_timeout=2.0)
        seen, goes_on = Seen(), asyncio.Event()

        async def handle(envelope: Envelope[Any]) -> None:
            await seen(envelope)
            await goes_on.wait()

        async with EventBus(settings) as bus:
            await bus.publish_envelope_batch("orders", [event(n) for n in range(KEYS)])
            await bus.subscribe_envelope("orders", handle)
            await until(lambda: seen.count and bus.health().in_flight == KEYS)
            limit_files(server, 1)
            goes_on.set()
            await until(lambda: bus.health().in_flight == 0)
        assert f"that {KEYS} events were handled, so they may come again" in caplog.text
        server.kill()

        server.start()
        async with EventBus(settings) as bus:
            await bus.subscribe_envelope("orders", handle)
            await until(lambda: seen.count == 2 * KEYS)


@asynchronous
async def test_a_bus_that_closes_waits_for_a_full_disk_to_get_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with PenstockServer(tmp_path) as server:
        settings = config(server.url)
        seen, goes_on = Seen(), asyncio.Event()

        async def handle(envelope: Envelope[Any]) -> None:
            await seen(envelope)
            await goes_on.wait()

        async with EventBus(settings) as bus:
            await bus.publish_envelope_batch("orders", [event(n) for n in range(KEYS)])
            await bus.subscribe_envelope("orders", handle)
            await until(lambda: seen.count and bus.health().in_flight == KEYS)
            limit_files(server, 1)
            goes_on.set()
            await until(lambda: bus.health().in_flight == 0)
            closing = asyncio.ensure_future(bus.close())
            await asyncio.wait([closing], timeout=0.5)
            assert not closing.done()
            limit_files(server, resource.RLIM_INFINITY)
            await closing
        assert "may come again" not in caplog.text
        server.kill()

        server.start()
        async with EventBus(settings) as bus:
            await bus.subscribe_envelope("orders", handle)
            await bus.publish_envelope_sync("orders", event(KEYS))
            await bus.drain()
    assert seen.count == KEYS + 1


@asynchronous
async def test_processes_that_share_the_work_handle_all_and_each_keeps_its_order(
    server: PenstockServer,
) -> None:
    shared = config(server.url, exclusive=False)
    first, second = Seen(), Seen()
    async with EventBus(shared) as one, EventBus(shared) as other:
        await one.subscribe_envelope("orders", first)
        await other.subscribe_envelope("orders", second)
        await one.publish_envelope_batch("orders", [event(n) for n in range(EVENTS)])
        await until(lambda: first.count + second.count >= EVENTS, 30)

    for seen in (first, second):
        assert all(numbers == sorted(numbers) for numbers in seen.by_key.values())
    for key, numbers in in_order().items():
        assert numbers == sorted(first.by_key[key] + second.by_key[key])


@asynchronous
async def test_bytes_with_headers_and_no_id_are_never_stored_twice(server: PenstockServer) -> None:
    async with FaultProxy(server.url) as proxy, EventBus(config(proxy.url)) as bus:
        await bus.configure_topic("raw")
        fault = proxy.drop("_INBOX.>", direction="down")
        publishing = asyncio.create_task(bus.publish("raw", b"x", headers=[("Color", "red")]))
        await until(lambda: fault.hits)
        proxy.cut()
        with pytest.raises(ConnectionLost):
            await publishing
        await until(lambda: bus.health().connected)
        stored = [one async for some in bus.engine.replay("raw", ReplayFrom()) for one in some]

        assert 1 == len(stored)
