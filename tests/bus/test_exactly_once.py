"""Inbox and outbox together: processing happens exactly once, whoever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.aio import asynchronous, until

from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig
from penstock.bus.outbox import SQLITE, Outbox
from penstock.bus.testing import PenstockServer

ACCOUNTS, DEPOSITS = 10, 400
NAMESPACE = "bank"
SCRIPT = Path(__file__).parent / "bookkeeper.py"


class Bookkeeper:
    """The process that is killed."""

    def __init__(self, url: str, database: Path) -> None:
        self._command = [sys.executable, str(SCRIPT), url, NAMESPACE, str(database)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert b"ready\n" == self._process.stdout.readline()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def make_database(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        Outbox(SQLITE).create_tables(database)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE balances (account TEXT, cents INTEGER)")
        accounts = [(f"account-{number}", 0) for number in range(ACCOUNTS)]
        database.executemany("INSERT INTO balances VALUES (?, ?)", accounts)


def balances(path: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as database:
        return [cents for (cents,) in database.execute("SELECT cents FROM balances")]


@contextlib.contextmanager
def bookkeeper(url: str, path: Path) -> Iterator[Bookkeeper]:
    keeper = Bookkeeper(url, path)
    try:
        keeper.start()
        yield keeper
    finally:
        keeper.kill()


async def booked(bus: EventBus) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {f"account-{number}": [] for number in range(ACCOUNTS)}
    async for _, envelope in bus.replay("booked"):
        found[envelope.aggregate_id].append(envelope.payload)
    return found


def deposit(number: int) -> Envelope[Any]:
    account = f"account-{number % ACCOUNTS}"
    return Envelope(aggregate_id=account, event_type="Deposited", payload=number)


@asynchronous
async def test_each_deposit_is_booked_once_and_in_order_although_everyone_is_killed(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    database = tmp_path / "bank.db"
    make_database(database)
    with PenstockServer(tmp_path) as server, bookkeeper(server.url, database) as keeper:
        config = BusConfig(type="nats", namespace=NAMESPACE, nats=NatsConfig(urls=(server.url,)))
        async with EventBus(config) as bus:
            await bus.configure_topic("deposits")
            for first in range(0, DEPOSITS, 100):
                events = [deposit(number) for number in range(first, first + 100)]
                await bus.publish_envelope_batch("deposits", events)
                aim = first + chance.randrange(20, 80)
                await until(lambda aim=aim: sum(balances(database)) >= aim, 30)
                await asyncio.to_thread(keeper.kill)
                if first == 200:
                    await asyncio.to_thread(server.restart)
                    await until(lambda: bus.health().connected)
                await asyncio.to_thread(keeper.start)
            await until(lambda: sum(balances(database)) >= DEPOSITS, 30)
            expected = {
                f"account-{number}": list(range(number, DEPOSITS, ACCOUNTS))
                for number in range(ACCOUNTS)
            }
            async with asyncio.timeout(30):
                while (found := await booked(bus)) != expected:
                    assert sum(map(len, found.values())) < DEPOSITS, found
                    await asyncio.sleep(0.05)

    assert [DEPOSITS // ACCOUNTS] * ACCOUNTS == balances(database)
