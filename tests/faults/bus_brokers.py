"""What an event bus runs on, to be killed and frozen: a server, a cluster of three, Kafka."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.cluster import NODES, cluster_of, elected
from tests.servers import NATS_SERVER, PENSTOCK, Program, ServerProcess

import penstock
from penstock.bus.testing.kafka import KafkaBroker, classpath
from penstock.errors import MissingExtra, PenstockError

FROZEN_S = (0.5, 2.0)
HEALTHY_S = 120.0


class Broker(Protocol):
    """What the bus runs on."""

    url: str
    """What a bus is opened with; the same as long as it lives."""
    freeze_s: float
    """How long a member must be frozen to be taken for dead."""
    deduplicates: bool
    """Whether an event that is published again is stored once."""

    async def kill(self) -> None:
        """Kill it, or a part of it, and have it back."""

    async def freeze(self) -> None:
        """Stop it, or a part of it, for a moment."""


class OneServer:
    """A single NATS server, ours or the real one."""

    freeze_s = 4.5
    deduplicates = True

    def __init__(self, server: ServerProcess, dice: random.Random) -> None:
        self.url = server.url
        self._server = server
        self._dice = dice

    async def kill(self) -> None:
        self._server.process.kill()
        await asyncio.to_thread(self._server.start_again)

    async def freeze(self) -> None:
        await _frozen(self._server.process.pid, self._dice)


class Trio:
    """Three nats-servers: one at a time is killed, also the one that leads."""

    freeze_s = 4.5
    deduplicates = True

    def __init__(self, servers: list[ServerProcess], dice: random.Random) -> None:
        self.url = ",".join(server.url for server in servers)
        self._servers = servers
        self._dice = dice
        self._kills = 0

    async def kill(self) -> None:
        victim = await self._victim()
        victim.process.kill()
        await asyncio.sleep(self._dice.uniform(0.0, 3.0))  # the others elect, or hardly notice
        await asyncio.to_thread(victim.start_again)
        await self.healthy()

    async def freeze(self) -> None:
        victim = await self._victim()
        await _frozen(victim.process.pid, self._dice)
        await self.healthy()

    async def healthy(self) -> dict[str, Any]:
        """Return what leads and follows, once everybody has everything."""
        async with asyncio.timeout(HEALTHY_S), await penstock.connect(self.url) as client:
            streams = client.jetstream(request_timeout_s=2.0).streams
            while True:
                try:
                    clusters = [one["cluster"] for one in await streams.list()]
                except PenstockError:
                    clusters = []
                if clusters and all(_is_whole(cluster) for cluster in clusters):
                    return {one["leader"]: one for one in clusters}
                await asyncio.sleep(0.1)

    async def _victim(self) -> ServerProcess:
        """Return one that leads a stream, and any the next time."""
        leaders = await self.healthy()
        self._kills += 1
        if self._kills % 2:
            return self._servers[int(self._dice.choice(sorted(leaders))[1:])]
        return self._dice.choice(self._servers)


class Kafka:
    """A real broker of Kafka."""

    freeze_s = 8.0
    deduplicates = False

    def __init__(self, broker: KafkaBroker, dice: random.Random) -> None:
        self.url = broker.url
        self._broker = broker
        self._dice = dice

    async def kill(self) -> None:
        self._broker.kill()
        await asyncio.to_thread(self._broker.start)

    async def freeze(self) -> None:
        await _frozen(self._broker.pid, self._dice)


@contextmanager
def one_server(program: Program, directory: Path, dice: random.Random) -> Iterator[Broker]:
    """Start a NATS server."""
    with ServerProcess(program, "jetstream { store_dir: store }") as server:
        yield OneServer(server, dice)


@contextmanager
def trio(directory: Path, dice: random.Random) -> Iterator[Broker]:
    """Start a cluster."""
    with ExitStack() as stack:
        servers = cluster_of(NODES, stack)
        asyncio.run(elected(servers[0].url))
        yield Trio(servers, dice)


@contextmanager
def kafka(directory: Path, dice: random.Random) -> Iterator[Broker]:
    """Start Kafka, if it can be fetched."""
    pytest.importorskip("confluent_kafka", reason="needs the extra `kafka`")
    try:
        classpath()
    except MissingExtra as error:
        pytest.skip(str(error))
    (directory / "kafka").mkdir()
    with KafkaBroker(directory / "kafka") as broker:
        yield Kafka(broker, dice)


@contextmanager
def broker_of(name: str, directory: Path, dice: random.Random) -> Iterator[Broker]:
    """Start one of `BROKERS`."""
    if name == "cluster":
        started = trio(directory, dice)
    elif name == "kafka":
        started = kafka(directory, dice)
    else:
        program = next(one for one in (PENSTOCK, NATS_SERVER) if one.name == name)
        started = one_server(program, directory, dice)
    with started as broker:
        yield broker


BROKERS = (PENSTOCK.name, NATS_SERVER.name, "cluster", "kafka")


async def _frozen(pid: int, dice: random.Random) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(dice.uniform(*FROZEN_S))
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_whole(cluster: dict[str, Any]) -> bool:
    replicas = cluster.get("replicas") or []
    return (
        bool(cluster.get("leader"))
        and len(replicas) == NODES - 1
        and all(one["current"] and not one.get("offline") for one in replicas)
    )
