"""Outbox and inbox: what a transaction says happens, once it is committed, and in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.aio import asynchronous, until
from tests.bus.postgres import postgres
from tests.conftest import Servers
from tests.servers import PENSTOCK, ServerProcess

from penstock.bus import BusConfig, Envelope, EventBus, NatsConfig, PublisherConfig
from penstock.bus.outbox import (
    POSTGRESQL,
    SQLITE,
    Dialect,
    Inbox,
    Outbox,
    PostgresStore,
    Relay,
    RelayConfig,
    SqliteStore,
)
from penstock.bus.outbox.store import OutboxStore

QUICK = RelayConfig(poll_s=0.01, backoff_s=0.05)


class Database(NamedTuple):
    """A database of either kind."""

    dialect: Dialect
    connect: Callable[[], Any]
    store: Callable[[], OutboxStore]
    address: str


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with postgres() as conninfo:
        yield conninfo


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        path = tmp_path / "shop.db"
        made = Database(SQLITE, lambda: sqlite3.connect(path), lambda: SqliteStore(path), str(path))
    else:
        psycopg = pytest.importorskip("psycopg")
        server = request.getfixturevalue("postgres_server")
        name = f"t{os.urandom(6).hex()}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        conninfo = server.replace("dbname=postgres", f"dbname={name}")
        made = Database(
            POSTGRESQL, lambda: psycopg.connect(conninfo), lambda: PostgresStore(conninfo), conninfo
        )
    with contextlib.closing(made.connect()) as connection:
        Outbox(made.dialect).create_tables(connection)
        connection.execute("CREATE TABLE orders (number INTEGER)")
        connection.commit()
    return made


@pytest.fixture
def config(servers: Servers) -> BusConfig:
    server: ServerProcess = servers(PENSTOCK, "jetstream { store_dir: store }")
    return BusConfig(
        type="nats",
        namespace=f"o{os.urandom(6).hex()}",
        nats=NatsConfig(urls=(server.url,)),
        publisher=PublisherConfig(publish_timeout=1.0),
    )


def event(number: int, key: str = "a", **fields: Any) -> Envelope[Any]:
    return Envelope(aggregate_id=key, event_type="numbered", payload=number, **fields)


def add(database: Database, *events: Envelope[Any], topic: str = "orders", **due: Any) -> None:
    with contextlib.closing(database.connect()) as connection:
        for one in events:
            Outbox(database.dialect).add(connection, topic, one, **due)
        connection.commit()


async def stored(bus: EventBus, topic: str = "orders", key: str | None = None) -> list[int]:
    return [envelope.payload async for _, envelope in bus.replay(topic, key=key)]


@asynchronous
async def test_what_is_committed_is_published_and_what_is_rolled_back_is_not(
    database: Database, config: BusConfig
) -> None:
    outbox = Outbox(database.dialect)
    with contextlib.closing(database.connect()) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        outbox.add(connection, "orders", event(1))
        connection.commit()
        connection.execute("INSERT INTO orders VALUES (2)")
        outbox.add(connection, "orders", event(2))
        connection.rollback()
        outbox.add_all(connection, "orders", [event(3), event(4)])
        connection.commit()
    async with EventBus(config) as bus, Relay(bus, database.store(), QUICK) as relay:
        await until(lambda: relay.published_total == 3)

        assert [1, 3, 4] == await stored(bus)


@asynchronous
async def test_events_keep_their_order_by_aggregate_and_are_marked_once(
    database: Database, config: BusConfig
) -> None:
    add(database, *(event(n, f"k{n % 7}") for n in range(700)))
    async with EventBus(config) as bus:
        relay = Relay(bus, database.store(), RelayConfig(rows_max=100))
        published = [await relay.drain(), await relay.drain()]
        await relay.close()

        assert [700, 0] == published
        for key in range(7):
            assert list(range(key, 700, 7)) == await stored(bus, key=f"k{key}")


@asynchronous
async def test_an_event_added_twice_is_published_once(
    database: Database, config: BusConfig
) -> None:
    one = event(1)
    add(database, one, one)
    async with EventBus(config) as bus:
        relay = Relay(bus, database.store())
        await relay.drain()
        await relay.close()

        assert [1] == await stored(bus)


@asynchronous
async def test_what_cannot_be_published_keeps_back_its_aggregate_only(
    database: Database, config: BusConfig
) -> None:
    large = event(0).with_payload("x" * 2_000_000)
    add(database, event(1, "a"), large, event(3, "a"), event(4, "b"))
    async with EventBus(config) as bus:
        relay = Relay(bus, database.store(), RelayConfig(backoff_s=60))
        first, second = await relay.drain(), await relay.drain()
        await relay.close()

        assert (2, 0, 1) == (first, second, relay.failed_total)
        assert sorted([1, 4]) == sorted(await stored(bus))
    with contextlib.closing(database.connect()) as connection:
        row = connection.execute(
            "SELECT attempts, last_error FROM penstock_outbox WHERE attempts > 0"
        ).fetchone()
    assert 1 == row[0]
    assert row[1]


@asynchronous
async def test_what_was_published_and_not_marked_is_stored_once(
    database: Database, config: BusConfig
) -> None:
    add(database, *(event(n) for n in range(10)))
    async with EventBus(config) as bus:
        first = database.store()
        assert first.open()
        for row in first.take(100, now_ns=2**62):  # a relay that dies before it marks
            await bus.publish(row.topic, row.body, message_id=row.event_id)
        first.close()
        relay = Relay(bus, database.store())
        await relay.drain()
        await relay.close()

        assert list(range(10)) == await stored(bus)


@asynchronous
async def test_a_delayed_event_waits_for_its_time_and_nothing_waits_for_it(
    database: Database, config: BusConfig
) -> None:
    add(database, event(1), due=datetime.now(UTC) + timedelta(seconds=0.5))
    add(database, event(2))
    async with EventBus(config) as bus, Relay(bus, database.store(), QUICK) as relay:
        await until(lambda: relay.published_total == 1)
        assert [2] == await stored(bus)
        await until(lambda: relay.published_total == 2)

        assert [2, 1] == await stored(bus)


@asynchronous
async def test_one_relay_works_and_another_takes_over(
    database: Database, config: BusConfig
) -> None:
    async with EventBus(config) as bus, Relay(bus, database.store(), QUICK) as second:
        await until(lambda: second.is_active)
        first = Relay(bus, database.store(), QUICK)
        assert not first.is_active
        assert 0 == await first.drain()
        await second.close()
        add(database, event(1))
        assert 1 == await first.drain()
        await first.close()


@asynchronous
async def test_published_events_are_purged_after_a_while(
    database: Database, config: BusConfig
) -> None:
    add(database, event(1))
    quick = RelayConfig(poll_s=0.01, keep_s=0.01, purge_every_s=0.01)

    def rows() -> int:
        with contextlib.closing(database.connect()) as connection:
            count: int = connection.execute("SELECT count(*) FROM penstock_outbox").fetchone()[0]
            return count

    async with EventBus(config) as bus, Relay(bus, database.store(), quick):
        await until(lambda: rows() == 0)


@asynchronous
async def test_a_bus_that_cannot_be_reached_loses_nothing(
    database: Database, tmp_path: Path
) -> None:
    flags = ("-js", "-sd", str(tmp_path / "store"))
    async with contextlib.AsyncExitStack() as stack:
        with ServerProcess(PENSTOCK, "", *flags) as server:
            port = server.port
            config = BusConfig(
                type="nats",
                nats=NatsConfig(urls=(server.url,), max_reconnect_wait=0.1),
                publisher=PublisherConfig(publish_timeout=0.5),
            )
            bus = await stack.enter_async_context(EventBus(config))
            relay = await stack.enter_async_context(Relay(bus, database.store(), QUICK))
            add(database, *(event(n) for n in range(50)))
            await until(lambda: relay.published_total >= 1)
        await asyncio.to_thread(write_in_another_process, database)
        with ServerProcess(PENSTOCK, "", *flags, "-p", str(port)):
            await until(lambda: relay.published_total >= 100, 30)

            assert list(range(100)) == await stored(bus)
            await stack.aclose()


def write_in_another_process(database: Database) -> None:
    script = Path(__file__).parent / "outbox_writer.py"
    kind = "sqlite" if database.dialect is SQLITE else "postgresql"
    subprocess.run([sys.executable, script, kind, database.address], check=True, timeout=30)


def test_an_event_is_accepted_once_by_each_service(database: Database) -> None:
    one, other = Inbox(database.dialect, service="one"), Inbox(database.dialect, service="other")
    with contextlib.closing(database.connect()) as connection:
        assert one.accept(connection, "e")
        connection.rollback()
        assert one.accept(connection, "e")
        assert not one.accept(connection, "e")
        assert other.accept(connection, "e")
        connection.commit()
        assert not one.accept(connection, "e")
        assert 1 == one.forget(connection, older_than=timedelta(0))
        assert one.accept(connection, "e")
        connection.commit()


@asynchronous
async def test_a_relay_whose_database_hangs_up_connects_again(
    postgres_server: str, config: BusConfig
) -> None:
    psycopg = pytest.importorskip("psycopg")
    async with (
        EventBus(config) as bus,
        Relay(bus, PostgresStore(postgres_server), QUICK) as relay,
    ):
        await until(lambda: relay.is_active)
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            Outbox(POSTGRESQL).add(connection, "orders", event(1, "hung-up"))
        await until(lambda: relay.published_total == 1)

        assert [1] == await stored(bus, key="hung-up")


@asynchronous
async def test_a_connection_that_is_awaited_executes_the_statement(postgres_server: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    outbox, inbox = Outbox(POSTGRESQL), Inbox(POSTGRESQL, service="awaited")
    async with await psycopg.AsyncConnection.connect(postgres_server) as connection:
        for statement in POSTGRESQL.create:
            await connection.execute(statement)
        await connection.execute(*outbox.statement("orders", event(1, "awaited")))
        accepted = [(await connection.execute(*inbox.statement("e"))).rowcount for _ in range(2)]
        found = await connection.execute(
            "SELECT topic FROM penstock_outbox WHERE aggregate_id = 'awaited'"
        )

        assert [("orders",)] == await found.fetchall()
        assert [1, 0] == accepted
        await connection.rollback()


def test_of_two_transactions_that_accept_an_event_the_first_wins(
    postgres_server: str,
) -> None:
    psycopg = pytest.importorskip("psycopg")
    inbox = Inbox(POSTGRESQL, service="racing")
    answers: list[bool] = []

    def accept() -> None:
        with psycopg.connect(postgres_server) as connection:
            answers.append(inbox.accept(connection, "e"))

    with psycopg.connect(postgres_server) as connection:
        Outbox(POSTGRESQL).create_tables(connection)
        connection.commit()
        assert inbox.accept(connection, "e")
        thread = threading.Thread(target=accept)
        thread.start()
        thread.join(0.1)
        assert [] == answers  # it waits for our outcome
        connection.commit()
        thread.join(10)

    assert [False] == answers


def test_a_later_commit_never_has_the_smaller_number(postgres_server: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    outbox, store = Outbox(POSTGRESQL), PostgresStore(postgres_server)

    def add_second() -> None:
        with psycopg.connect(postgres_server) as connection:
            outbox.add(connection, "orders", event(2, "racing"))

    with psycopg.connect(postgres_server) as connection:
        outbox.create_tables(connection)
        connection.commit()
        outbox.add(connection, "orders", event(1, "racing"))
        thread = threading.Thread(target=add_second)
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()  # it waits for its turn
        outbox.add(connection, "orders", event(3, "other"))
    thread.join(10)
    assert store.open()
    rows = [row for row in store.take(100, now_ns=2**62) if row.aggregate_id == "racing"]
    store.close()

    assert [b'"payload":1}', b'"payload":2}'] == [row.body[-12:] for row in rows]


def test_the_relay_leaves_no_thread_behind(database: Database, config: BusConfig) -> None:
    before = threading.active_count()

    async def work() -> None:
        async with EventBus(config) as bus, Relay(bus, database.store(), QUICK) as relay:
            relay.wake()
            await until(lambda: relay.is_active)

    asyncio.run(work())
    assert before == threading.active_count()
