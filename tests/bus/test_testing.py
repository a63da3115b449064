"""The tools for testing: faults happen where they are asked for, time does not pass by itself."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until

from penstock.bus import (
    BusConfig,
    ConsumerConfig,
    Envelope,
    EventBus,
    JetStreamConfig,
    NatsConfig,
    PublisherConfig,
    SubscriberConfig,
)
from penstock.bus.deadletters.stored import DeadLetterBox
from penstock.bus.testing import FaultProxy, PenstockServer, VirtualTime
from penstock.bus.testing.frames import split
from penstock.bus.testing.wire import TCP_INFO, is_carrying
from penstock.errors import RequestTimeout

STREAM = (
    b'INFO {"a":1}\r\nPUB a.b 5\r\nhe\r\nl\r\n'
    b"HMSG c.d 1 r 4 6\r\nabcdef\r\nPING\r\nMSG e 2 0\r\n\r\n"
)


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_cut_anywhere_changes_no_frame(cut: int) -> None:
    first, rest = split(STREAM[:cut])
    second, left = split(rest + STREAM[cut:])
    frames = first + second

    assert b"" == left
    assert ["", "a.b", "c.d", "", "e"] == [frame.subject for frame in frames]
    assert STREAM == b"".join(frame.data for frame in frames)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockServer]:
    with PenstockServer(tmp_path_factory.mktemp("server")) as server:
        yield server


def bus_at(url: str, **publisher: Any) -> EventBus:
    return EventBus(
        BusConfig(
            type="nats",
            namespace=f"f{os.urandom(6).hex()}",
            nats=NatsConfig(
                urls=(url,),
                jetstream=JetStreamConfig(consumer=ConsumerConfig(ack_wait=0.5)),
            ),
            publisher=PublisherConfig(**publisher),
        )
    )


def event(number: int, key: str = "a") -> Envelope[Any]:
    return Envelope(aggregate_id=key, event_type="numbered", payload=number)


class Seen(list[int]):
    """A handler that remembers."""

    async def __call__(self, envelope: Envelope[Any]) -> None:
        self.append(envelope.payload)


@asynchronous
async def test_a_dropped_ack_is_a_timeout_and_the_event_is_stored(server: PenstockServer) -> None:
    async with FaultProxy(server.url) as proxy, bus_at(proxy.url, publish_timeout=0.3) as bus:
        await bus.configure_topic("orders")
        fault = proxy.drop("_INBOX.>", direction="down")
        with pytest.raises(RequestTimeout):
            await bus.publish_envelope_sync("orders", event(1))

        assert 1 == fault.hits
        assert [1] == [envelope.payload async for _, envelope in bus.replay("orders")]


@asynchronous
async def test_a_duplicated_publish_is_stored_once(server: PenstockServer) -> None:
    async with FaultProxy(server.url) as proxy, bus_at(proxy.url) as bus:
        seen = Seen()
        await bus.subscribe_envelope("orders", seen)
        fault = proxy.duplicate(f"{bus.config.namespace}.orders", count=3)
        await bus.publish_envelope_batch("orders", [event(n) for n in range(5)])
        await until(lambda: len(seen) == 5)

        assert (3, list(range(5))) == (fault.hits, seen)


@asynchronous
async def test_a_dropped_delivery_comes_again(server: PenstockServer) -> None:
    async with FaultProxy(server.url) as proxy, bus_at(proxy.url) as bus:
        seen = Seen()
        await bus.subscribe_envelope("orders", seen)
        fault = proxy.drop(f"{bus.config.namespace}.orders", direction="down")
        await bus.publish_envelope_sync("orders", event(1))
        await until(lambda: seen)

        assert (1, [1]) == (fault.hits, seen)


@asynchronous
async def test_a_delay_delays(server: PenstockServer) -> None:
    async with FaultProxy(server.url) as proxy, bus_at(proxy.url) as bus:
        await bus.configure_topic("orders")
        proxy.delay(f"{bus.config.namespace}.orders", 0.2)
        started_s = time.monotonic()
        await bus.publish_envelope_sync("orders", event(1))

        assert time.monotonic() - started_s >= 0.2


@asynchronous
async def test_a_bus_survives_cuts_stalls_and_refusals(server: PenstockServer) -> None:
    async with FaultProxy(server.url) as proxy, bus_at(proxy.url) as bus:
        seen = Seen()
        await bus.subscribe_envelope("orders", seen)
        await bus.configure_topic("orders")
        for number, harm in enumerate((proxy.cut, proxy.refuse, proxy.stall)):
            harm()
            await bus.publish_envelope("orders", event(number))
            proxy.heal()
            await until(lambda number=number: number in seen, 30)

        assert [0, 1, 2] == seen
        assert proxy.accepted >= 3


@asynchronous
async def test_a_killed_server_comes_back_with_what_it_had_acked(tmp_path: Path) -> None:
    with PenstockServer(tmp_path) as server:
        async with bus_at(server.url) as bus:
            await bus.publish_envelope_batch("orders", [event(n) for n in range(10)])
            url = server.url
            await asyncio.to_thread(server.restart)
            await until(lambda: bus.health().connected)

            assert url == server.url
            assert list(range(10)) == [one.payload async for _, one in bus.replay("orders")]


def test_minutes_of_retries_take_a_moment(tmp_path: Path) -> None:
    clock = VirtualTime()
    attempts_s: list[float] = []
    config = EventBus.open(
        f"embedded:{tmp_path}",
        subscriber=SubscriberConfig(max_attempts=5, backoff=60, backoff_factor=1, max_backoff=60),
    ).config

    async def refuse(_: Envelope[Any]) -> None:
        attempts_s.append(clock.elapsed_s)
        raise ValueError("no")

    async def work() -> list[str]:
        async with EventBus(config) as bus:
            await bus.subscribe_envelope("orders", refuse)
            await bus.publish_envelope("orders", event(1))
            while not bus.metrics.dead_letters_total:  # noqa: ASYNC110  (the clock jumps)
                await asyncio.sleep(1)
            return [letter.cause async for letter in DeadLetterBox(bus).find()]

    started_s = time.monotonic()
    causes = clock.run(work())
    waits_s = [later - earlier for earlier, later in pairwise(attempts_s)]

    assert ["ValueError: no"] == causes
    assert 4 == len(waits_s)
    assert all(45 <= wait_s <= 80 for wait_s in waits_s)
    assert time.monotonic() - started_s < clock.elapsed_s / 5


def test_an_ack_wait_ends_when_its_time_has_come_and_not_before(tmp_path: Path) -> None:
    clock = VirtualTime()

    async def work() -> tuple[float, list[int]]:
        async with EventBus.open(f"embedded:{tmp_path}") as bus:
            await bus.publish_envelope_sync("orders", event(1))
            jetstream = bus.engine.client.jetstream()  # type: ignore[attr-defined]
            await jetstream.consumers.create("events", durable_name="slow", ack_policy="explicit")
            async with jetstream.pull_consumer("events", "slow") as consumer:
                first = await consumer.fetch(1)
                started_s = clock.elapsed_s
                again = await consumer.fetch(1, expires_s=120)
                deliveries = [one.metadata.deliveries for one in (*first, *again)]
                return clock.elapsed_s - started_s, deliveries

    waited_s, deliveries = clock.run(work())

    assert [1, 2] == deliveries
    assert 29 <= waited_s <= 35


def test_the_real_clock_is_back_afterwards() -> None:
    from penstock.bus import lanes
    from penstock.net import server

    async def nothing() -> None:
        assert lanes.monotonic is not time.monotonic
        assert server.time is not time

    VirtualTime().run(nothing())

    assert lanes.monotonic is time.monotonic
    assert server.time is time


PROGRAM = """
import asyncio
from penstock.bus import Envelope, EventBus

EVENT = Envelope(aggregate_id="k", event_type="t", payload=1)

def test_event_bus(event_bus):
    async def work():
        async with event_bus as bus:
            await bus.publish_envelope_sync("a", EVENT)
            return [one.payload async for _, one in bus.replay("a")]
    assert asyncio.run(work()) == [1]

def test_server_and_proxy(penstock_server, fault_proxy):
    async def work():
        async with fault_proxy as proxy, EventBus.open(proxy.url) as bus:
            await bus.publish_envelope_sync("a", EVENT)
    asyncio.run(work())
    penstock_server.restart()

def test_time(virtual_time):
    virtual_time.run(asyncio.sleep(3600))
    assert round(virtual_time.elapsed_s) == 3600
"""


def test_no_time_passes_while_a_thread_works_for_the_loop() -> None:
    """As the journal of the server does, whose disk may be slow."""
    clock = VirtualTime()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def job() -> None:
            time.sleep(0.1)
            loop.call_soon_threadsafe(done.set)

        with ThreadPoolExecutor(1) as threads:
            threads.submit(job)
            async with asyncio.timeout(0.05):
                await done.wait()
        await asyncio.sleep(3600)

    clock.run(work())

    assert 3600 == round(clock.elapsed_s)


@pytest.mark.skipif(TCP_INFO is None, reason="only Linux can be asked")
def test_bytes_are_on_their_way_until_the_other_end_has_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sender = socket.create_connection(listening.getsockname())
        receiver, _ = listening.accept()
    with sender, receiver:
        sender.setblocking(False)
        descriptors = [sender.fileno()], [receiver.fileno()]
        assert not is_carrying(*descriptors)
        with suppress(BlockingIOError):
            while True:
                sender.send(bytes(65_536))  # until neither has room for more
        assert is_carrying([receiver.fileno()], [sender.fileno()])
        # Nobody waits for bytes that go the other way.
        assert not is_carrying([sender.fileno()], [receiver.fileno()])
        receiver.setblocking(False)
        deadline_s = time.monotonic() + 20
        while is_carrying([receiver.fileno()], [sender.fileno()]):
            assert time.monotonic() < deadline_s
            with suppress(BlockingIOError):
                receiver.recv(1 << 20)


def test_the_plugin_gives_its_fixtures_to_any_project(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "penstock.pytest_plugin"],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert "3 passed" in ended.stdout, ended.stdout
