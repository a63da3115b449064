"""Connections are used again by the next task, if they are up and clean."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.servers import ServerProcess, wait_until
from tests.spark.conftest import Broker
from tests.spark.relay import Relay

from penstock.spark.options import parse_sink, parse_source
from penstock.spark.pool import Pool, WorkerPool, lend
from penstock.spark.sink.publish import SinkWindow
from penstock.spark.sink.sink import Encoder
from penstock.spark.source import fetch
from penstock.spark.source.fetch import read_range
from penstock.spark.source.position import Range

NAME = "penstock-spark-test"


@pytest.fixture
def relay(server: ServerProcess) -> Iterator[Relay]:
    """Return a way to the server on which connections are counted."""
    with Relay(server.port) as relay:
        yield relay


@pytest.fixture
def options(relay: Relay, stream: str) -> Any:
    """Return the options of a reader of the stream."""
    return parse_source({"servers": relay.url, "stream": stream})


def sequences(broker: Broker, options: Any, first: int, last: int) -> list[int]:
    """Read a range as a task does."""
    created = broker.info(options[1].stream)["created"]
    batches = read_range(*options, created, Range(first, last))
    return [n for batch in batches for n in batch.column("sequence").to_pylist()]


def test_tasks_of_one_process_share_a_connection(
    broker: Broker, stream: str, options: Any, relay: Relay
) -> None:
    broker.fill(stream, 100)

    for first in range(1, 100, 10):
        assert list(range(first, first + 10)) == sequences(broker, options, first, first + 9)

    assert 1 == relay.connections
    assert [] == broker.consumers(stream)


def test_a_connection_that_broke_meanwhile_is_replaced(
    broker: Broker, stream: str, options: Any, relay: Relay
) -> None:
    broker.fill(stream, 10)
    for _ in range(3):
        assert list(range(1, 11)) == sequences(broker, options, 1, 10)
        relay.leave()
        relay.come_back()

    assert 3 == relay.connections


def test_nothing_of_one_task_comes_to_the_next(
    broker: Broker, stream: str, options: Any, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which asks for more than comes, deletes its consumer, or is broken off."""
    monkeypatch.setattr(fetch, "PULL_MESSAGES_MAX", 7)
    broker.fill(stream, 500)
    connection, source = options
    chance = random.Random(1)
    created = broker.info(stream)["created"]
    for _ in range(40):
        first = chance.randrange(1, 500)
        last = chance.randrange(first, 501)
        digit = chance.randrange(10)
        few = replace(source, subjects=(f"{stream}.{digit}",), batch_bytes_max=1)
        expected = [n for n in range(first, last + 1) if n % 10 == digit]

        assert expected == sequences(broker, (connection, few), first, last)
        next(read_range(connection, replace(source, batch_bytes_max=1), created, Range(1, 400)))


def test_a_sink_uses_a_connection_again(broker: Broker, stream: str, relay: Relay) -> None:
    connection, sink = parse_sink(
        {"servers": relay.url, "subject": f"{stream}.a", "messageIds": "none"}
    )
    for _ in range(3):
        with SinkWindow(connection, 10) as window:
            rows = pa.record_batch({"data": [b"x"] * 100})
            window.add(*Encoder(sink, "").encode(rows, window.reply_prefix))
            window.flush()

    assert 1 == relay.connections
    assert 300 == broker.info(stream)["state"]["messages"]


def test_a_connection_that_nobody_uses_is_closed(options: Any) -> None:
    now_s = [0.0]
    pool = Pool(idle_s=30, clock=lambda: now_s[0])
    first, second = pool.take(options[0], NAME), pool.take(options[0], NAME)
    pool.give_back(first)
    now_s[0] = 20
    pool.give_back(second)
    now_s[0] = 40
    pool.close_idle()

    assert (False, True) == (first.is_open, second.is_open)
    assert second is pool.take(options[0], NAME)
    second.close()


def test_a_connection_is_closed_in_time_although_another_was_before(options: Any) -> None:
    pool = Pool(idle_s=0.2)
    first, second = pool.take(options[0], NAME), pool.take(options[0], NAME)
    pool.give_back(first)
    wait_until(lambda: not first.is_open)
    pool.give_back(second)
    wait_until(lambda: not second.is_open)


def test_others_get_connections_of_their_own(options: Any) -> None:
    pool = Pool()
    connection = options[0]
    first = pool.take(connection, NAME)
    pool.give_back(first)
    others = [
        pool.take(replace(connection, user="u", password="p"), NAME),
        pool.take(connection, f"{NAME}-2"),
    ]

    assert first not in others
    assert first is pool.take(connection, NAME)
    for each in (first, *others):
        each.close()


def test_a_failed_task_leaves_no_connection(options: Any) -> None:
    with pytest.raises(ZeroDivisionError), lend(options[0], NAME) as connection:
        1 / 0  # noqa: B018

    assert not connection.is_open


def test_a_forked_process_begins_with_none(options: Any) -> None:
    with lend(options[0], NAME) as connection:
        pass
    with warnings.catch_warnings():
        # Of a process with threads: the child here does nothing but end.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os._exit(len(WorkerPool.pool._free))

    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with lend(options[0], NAME) as again:
        assert again is connection
