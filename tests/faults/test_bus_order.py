"""
The order of every aggregate, through whatever goes wrong.

10,000 events of 1000 aggregates on 5 topics, handlers that fail for one in a
hundred, a server that is killed and comes back, a consumer that is killed and
started again: nothing is lost, and nothing is handled before what came before it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.aio import asynchronous, until
from tests.servers import NATS_SERVER, PENSTOCK, Program, ServerProcess

from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig, PublisherConfig

MESSAGES = 10_000
AGGREGATES = 1000
TOPICS = 5
RATE_PER_S = 3000.0
"""Slow enough that most aggregates have more to come when server and consumer die."""

TIMEOUT_S = 60.0


class Consumer:
    """A consumer in a process of its own, and the file it writes to."""

    def __init__(self, url: str, namespace: str, log: Path) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.bus_consumer", url, namespace],
                stdout=output,
                stderr=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def all_stopped() -> Iterator[list[ServerProcess]]:
    """Servers to start one after another; all are stopped in the end."""
    with ExitStack() as stack:
        servers: list[ServerProcess] = []
        stack.callback(lambda: [server.__exit__() for server in servers])
        yield servers


def start(program: Program, directory: str, port: int = -1) -> ServerProcess:
    config = f'jetstream {{ store_dir: "{directory}" }}'
    flags = ("-p", str(port)) if port > 0 else ()
    return ServerProcess(program, config, *flags).__enter__()


def handled(log: Path) -> list[tuple[str, int]]:
    lines = log.read_text().splitlines()
    pairs = [line.split() for line in lines if line != "ready"]
    return [(key, int(number)) for key, number in pairs]


def first_occurrences(pairs: list[tuple[str, int]]) -> dict[str, list[int]]:
    """Return the numbers of each aggregate in the order they were first handled."""
    numbers: dict[str, dict[int, None]] = {}
    for key, number in pairs:
        numbers.setdefault(key, {})[number] = None
    return {key: list(found) for key, found in numbers.items()}


def key_of(number: int) -> int:
    """Return the aggregate of an event: a hundred take turns, ten times, then the next hundred."""
    return number // 1000 * 100 + number % 100


async def publish_all(bus: EventBus, gates: dict[int, asyncio.Event]) -> None:
    """Publish everything; at each gate wait until what it stands for has happened."""
    for number in range(MESSAGES):
        if number in gates:
            await gates[number].wait()
        key = key_of(number)
        envelope = Envelope(aggregate_id=f"k{key}", event_type="t", payload=number)
        await bus.publish_envelope(f"load.t{key % TOPICS}", envelope)
    await bus.flush()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("program", [NATS_SERVER, PENSTOCK], ids=lambda program: program.name)
@asynchronous
async def test_nothing_is_lost_and_no_aggregate_is_reordered(
    program: Program, tmp_path: Path
) -> None:
    log = tmp_path / "handled"
    namespace = f"n{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as store, all_stopped() as servers:
        servers.append(start(program, store))
        url, port = servers[0].url, servers[0].port
        config = BusConfig(
            type="nats",
            namespace=namespace,
            nats=NatsConfig(urls=(url,)),
            publisher=PublisherConfig(publish_timeout=30.0, rate=RATE_PER_S),
        )
        async with EventBus(config) as bus:
            await bus.configure_topic("load.t0")
            consumer = Consumer(url, namespace, log)
            try:
                server_killed, consumer_killed = asyncio.Event(), asyncio.Event()
                gates = {MESSAGES * 5 // 10: server_killed, MESSAGES * 9 // 10: consumer_killed}
                publishing = asyncio.ensure_future(publish_all(bus, gates))
                await until(lambda: len(handled(log)) > MESSAGES // 10, TIMEOUT_S)
                servers[-1].process.kill()
                servers[-1].process.wait()
                server_killed.set()
                servers.append(start(program, store, port))
                await until(lambda: len(handled(log)) > MESSAGES // 2, TIMEOUT_S)
                consumer.kill()
                consumer_killed.set()
                consumer = Consumer(url, namespace, log)
                await publishing
                await until(lambda: len(set(handled(log))) == MESSAGES, TIMEOUT_S)
            finally:
                consumer.kill()

        assert 0 == bus.metrics.publish_failed_total
    found = first_occurrences(handled(log))
    expected = first_occurrences([(f"k{key_of(number)}", number) for number in range(MESSAGES)])
    assert AGGREGATES == len(expected)
    assert expected == found
    # A crash may repeat what was handled and not yet acked: at most what was in flight.
    assert len(handled(log)) - MESSAGES <= 1000
