"""Processes of a service that share its keys: killed, frozen and cut off, and what they say."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until
from tests.conftest import Servers
from tests.servers import PROGRAMS, ServerProcess

import penstock
from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig
from penstock.bus.config.nats import ConsumerConfig, JetStreamConfig, StreamConfig
from penstock.bus.engines.nats.members.slots import SLOTS
from penstock.bus.testing import FaultProxy

KEYS = 40
COUNT = 1200
TAKEOVER_S = 1.0
MEMBER = Path(__file__).with_name("service.py")
UNBOUNDED = StreamConfig(max_bytes=0)
"""Nats-server sets aside as much disk as a stream may grow to."""


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def server(request: pytest.FixtureRequest, servers: Servers) -> ServerProcess:
    return servers(request.param, "jetstream { store_dir: store }")


def shop(url: str, namespace: str, **settings: Any) -> EventBus:
    """Return a process of a service."""
    consumer = ConsumerConfig(**{"takeover": TAKEOVER_S} | settings)
    nats = NatsConfig(urls=(url,), jetstream=JetStreamConfig(consumer=consumer, stream=UNBOUNDED))
    return EventBus(BusConfig(type="nats", namespace=namespace, service="shop", nats=nats))


def new_namespace() -> str:
    return f"n{os.urandom(6).hex()}"


async def publish(bus: EventBus, numbers: range) -> None:
    await bus.publish_envelope_batch(
        "orders",
        [Envelope(aggregate_id=f"k{n % KEYS}", event_type="t", payload=n) for n in numbers],
    )


class Witness:
    """Writes down what is begun in which order, whoever does it."""

    def __init__(self) -> None:
        self.begun: defaultdict[str, list[int]] = defaultdict(list)

    def take(self, number: int) -> None:
        self.begun[f"k{number % KEYS}"].append(number)

    @property
    def numbers(self) -> set[int]:
        return {number for numbers in self.begun.values() for number in numbers}

    @property
    def repeats(self) -> int:
        return sum(map(len, self.begun.values())) - len(self.numbers)

    def check(self, count: int) -> None:
        """See that all was begun, and nothing before what comes before it."""
        assert set(range(count)) == self.numbers
        for key, numbers in self.begun.items():
            first = list(dict.fromkeys(numbers))
            assert sorted(first) == first, key


@asynccontextmanager
async def process(
    server: ServerProcess, namespace: str, witness: Witness
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of the service that says what it begins with."""
    one = await asyncio.create_subprocess_exec(
        *(sys.executable, str(MEMBER), server.url, namespace, "0", "freezes"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert one.stdout is not None
    output = one.stdout

    async def listen() -> None:
        while line := await output.readline():
            if line.strip().isdigit():
                witness.take(int(line))

    listening = asyncio.create_task(listen())
    try:
        yield one
    finally:
        if one.returncode is None:
            one.kill()
        await one.wait()
        await listening


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "another"])
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
@asynchronous
async def test_the_keys_of_a_member_that_dies_go_on_in_order_at_the_others(
    server: ServerProcess, way: signal.Signals, leads: bool
) -> None:
    namespace, witness = new_namespace(), Witness()

    async def handle(envelope: Envelope[int]) -> None:
        witness.take(envelope.payload)
        await asyncio.sleep(0.005)

    async with AsyncExitStack() as stack:
        publishing = await stack.enter_async_context(shop(server.url, namespace))
        await publishing.configure_topic("orders")
        here = shop(server.url, namespace)
        here.on("orders")(handle)
        if not leads:
            await stack.enter_async_context(here)
        victim = await stack.enter_async_context(process(server, namespace, witness))
        if leads:
            await until_leads(publishing)
            await stack.enter_async_context(here)
        await until(lambda: sorted(here.health().members.values()) == [SLOTS // 2] * 2, 60)
        assert leads is (here.health().leader != here.engine.membership.me)
        await publish(publishing, range(COUNT))
        await until(lambda: len(witness.numbers) > COUNT // 4, 60)
        victim.send_signal(way)
        await until(lambda: len(witness.numbers) == COUNT, 60)
        if way == signal.SIGSTOP:
            victim.send_signal(signal.SIGCONT)
            await until(lambda: len(here.health().members) == 2, 60)

        witness.check(COUNT)
        assert 1 <= here.snapshot().members
        # What it had begun with, one of each key, and what is on its way in the pipe.
        assert witness.repeats <= KEYS


async def until_leads(bus: EventBus) -> None:
    """Return once some process leads the service."""
    async with asyncio.timeout(60):
        while not (found := (await bus.engine.services()).get("shop")) or not found.leader:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "another"])
@asynchronous
async def test_a_member_that_is_cut_off_begins_with_nothing_that_others_have(
    server: ServerProcess, leads: bool
) -> None:
    namespace, witness = new_namespace(), Witness()
    async with FaultProxy(server.url) as proxy, AsyncExitStack() as stack:
        far, near = shop(proxy.url, namespace), shop(server.url, namespace)

        async def handle(envelope: Envelope[int]) -> None:
            witness.take(envelope.payload)
            await asyncio.sleep(0.005)

        for bus in (far, near):
            bus.on("orders")(handle)
        publishing = await stack.enter_async_context(shop(server.url, namespace))
        await publishing.configure_topic("orders")
        for bus in (far, near) if leads else (near, far):
            await stack.enter_async_context(bus)
            await until(lambda: bus.health().leader, 60)  # noqa: B023
        await until(lambda: sorted(near.health().members.values()) == [SLOTS // 2] * 2, 60)
        await publish(publishing, range(COUNT))
        await until(lambda: len(witness.numbers) > COUNT // 8, 60)
        proxy.stall()
        await until(lambda: len(witness.numbers) == COUNT, 90)
        proxy.heal()
        proxy.cut()
        await until(lambda: len(near.health().members) == 2, 90)

        witness.check(COUNT)


@asynchronous
async def test_a_service_that_has_nothing_to_do_asks_the_server_little(
    server: ServerProcess,
) -> None:
    namespace = new_namespace()
    asked: list[str] = []
    async with AsyncExitStack() as stack:
        for _ in range(8):
            bus = shop(server.url, namespace, takeover=3.0)
            bus.on("orders.*")(lambda event: None)
            await stack.enter_async_context(bus)
        await until(lambda: len(bus.health().members) == 8, 60)
        await asyncio.sleep(2.0)  # requests stand longer while nothing comes
        observer = await stack.enter_async_context(await penstock.connect(server.url))
        for pattern in ("$JS.API.>", f"{namespace}-members.>", f"{namespace}-leases.>"):
            await observer.subscribe(pattern, callback=lambda one: asked.append(one.subject))
        await observer.flush()
        seconds = 5
        await asyncio.sleep(seconds)
        requests = [one for one in asked if not one.endswith(".grant")]

    assert len(requests) <= 20 * seconds, requests


@asynchronous
async def test_an_exclusive_service_has_one_active_process_and_standbys(
    server: ServerProcess,
) -> None:
    namespace = new_namespace()
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def handler(index: int) -> Callable[[Envelope[int]], Any]:
        async def handle(envelope: Envelope[int]) -> None:
            seen[index].append(envelope.payload)

        return handle

    async with AsyncExitStack() as stack:
        buses = [shop(server.url, namespace, exclusive=True) for _ in seen]
        for index, bus in enumerate(buses):
            bus.on("orders")(handler(index))
            await stack.enter_async_context(bus)
        await until(lambda: len(buses[0].health().members) == 3, 60)
        await publish(buses[2], range(COUNT))
        await until(lambda: len(seen[0]) == COUNT, 60)
        assert [True, False, False] == [bus.health().active for bus in buses]
        await buses[0].close()
        await publish(buses[2], range(COUNT, COUNT + KEYS))
        await until(lambda: len(seen[1]) + len(seen[2]) == KEYS, 60)

    assert [] in (seen[1], seen[2])


@asynchronous
async def test_the_command_lists_the_members_of_every_service(server: ServerProcess) -> None:
    namespace = new_namespace()
    async with AsyncExitStack() as stack:
        for _ in range(2):
            bus = shop(server.url, namespace)
            bus.on("orders")(lambda event: None)
            await stack.enter_async_context(bus)
        await until(lambda: sorted(bus.health().members.values()) == [SLOTS // 2] * 2, 60)
        ended = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock", "topics", "members", "--json"),
            *("--server", server.url, "--namespace", namespace),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await ended.communicate()
        found = json.loads(output)

    assert [("shop", SLOTS // 2)] * 2 == [(one["service"], one["slots"]) for one in found]
    assert 1 == sum(one["leads"] for one in found)
