"""A stream on three nats-servers, one of which dies or lags while it is read and written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pyarrow as pa
import pytest
from tests.cluster import NODES, cluster_of
from tests.servers import ServerProcess, wait_until
from tests.spark.conftest import Broker, elected

from penstock.client.messages import status_of
from penstock.errors import RequestTimeout
from penstock.spark.connection import Connection
from penstock.spark.options import ConnectionOptions, parse_sink, parse_source
from penstock.spark.sink.publish import SinkWindow
from penstock.spark.sink.sink import Encoder
from penstock.spark.sink.stored import StoredRows
from penstock.spark.source import fetch
from penstock.spark.source.fetch import read_range
from penstock.spark.source.position import Range

MESSAGES = 3000
LAG_MESSAGES, READS = 120_000, 30
"""What a follower misses while it is away, and how often the end is read when it comes back."""


@pytest.fixture
def cluster() -> Iterator[list[ServerProcess]]:
    """Return three servers."""
    with ExitStack() as stack:
        yield cluster_of(NODES, stack)


def leader(broker: Broker, stream: str, servers: list[ServerProcess]) -> ServerProcess:
    """Return the server that leads the stream."""
    name: str = broker.info(stream)["cluster"]["leader"]
    return servers[int(name.removeprefix("n"))]


@pytest.mark.slow
def test_rows_are_stored_and_read_once_although_the_leader_dies(
    cluster: list[ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PULL_MESSAGES_MAX", 100)
    urls = ",".join(server.url for server in cluster)
    elected(Broker(cluster[0].url, replicas=NODES)).create("TRIO")
    patient = {"servers": urls, "retryTimeoutSeconds": "300"}
    connection, sink = parse_sink(patient | {"subject": "TRIO.a"})
    numbers = range(MESSAGES)
    batch = pa.record_batch(
        {"data": [b"%d" % n for n in numbers], "message_id": [f"row-{n}" for n in numbers]}
    )

    with SinkWindow(connection, 500) as window:
        tokens, frames = Encoder(sink, "job-1").encode(batch, window.reply_prefix)
        window.add(tokens[:1000], frames[:1000])
        dead = leader(Broker(cluster[0].url), "TRIO", cluster)
        dead.process.kill()
        window.add(tokens[1000:], frames[1000:])
        window.flush()
    left = Broker(next(server.url for server in cluster if server is not dead))
    connection, source = parse_source(patient | {"stream": "TRIO", "batchBytesMax": "2000"})
    batches = read_range(connection, source, left.info("TRIO")["created"], Range(1, MESSAGES))
    found = [int(row["data"]) for each in batches for row in each.to_pylist()]

    assert MESSAGES == left.info("TRIO")["state"]["messages"]
    # A window that is sent again may have been stored in part, so the order is not promised.
    assert list(range(MESSAGES)) == sorted(found)
    assert [] == left.consumers("TRIO")


@pytest.mark.slow
def test_a_task_that_begins_without_a_leader_waits_for_one(cluster: list[ServerProcess]) -> None:
    broker = elected(Broker(cluster[0].url, replicas=NODES))
    broker.create("TRIO")
    led_by = leader(broker, "TRIO", cluster)
    alive = next(server for server in cluster if server is not led_by)
    dead = [server for server in cluster if server is not alive]
    options = {"servers": alive.url, "retryTimeoutSeconds": "300", "subject": "TRIO.a"}
    connection, sink = parse_sink(options)
    row = pa.record_batch({"data": [b"1"], "message_id": ["row-1"]})
    for server in dead:
        server.process.kill()
    wait_until(lambda: is_refused(connection, "TRIO.a"), timeout_s=60)

    with (
        ThreadPoolExecutor() as others,
        SinkWindow(connection, 500, stored=StoredRows(connection, time.time(), "")) as window,
    ):
        tokens, frames = Encoder(sink, "job").encode(row, window.reply_prefix)
        # One that is alone can neither lead nor say whether there is such a stream.
        back = [others.submit(server.start_again) for server in dead]
        window.add(tokens, frames)
        window.flush()
        for each in back:
            each.result()

    assert (1, 1) == (window.acked, Broker(alive.url).info("TRIO")["state"]["messages"])


def is_refused(options: ConnectionOptions, subject: str) -> bool:
    """Tell whether a server knows that nobody stores a subject."""
    with Connection(options, "test") as connection:
        try:
            return status_of(connection.request(subject, b""))[0] == 503
        except RequestTimeout:
            return False


@pytest.mark.slow
def test_a_follower_that_catches_up_hides_no_messages(cluster: list[ServerProcess]) -> None:
    """A consumer may live on it, and finds nothing where the leader has messages."""
    broker = elected(Broker(cluster[0].url, replicas=NODES))
    broker.create("TRIO")
    broker.publish([("TRIO.a", b"")] * 1000)
    led_by = leader(broker, "TRIO", cluster)
    follower = next(each for each in cluster[1:] if each is not led_by)
    follower.process.kill()
    broker.publish([("TRIO.a", bytes(200))] * LAG_MESSAGES)
    last = broker.info("TRIO")["state"]["last_seq"]
    options = parse_source({"servers": cluster[0].url, "stream": "TRIO", "timeoutSeconds": "30"})
    created, end = broker.info("TRIO")["created"], Range(last - 99, last)

    follower.start_again()
    found = []
    while len(found) < READS or not is_current(broker):
        found.append(sum(each.num_rows for each in read_range(*options, created, end)))

    assert {end.size} == set(found)


def is_current(broker: Broker) -> bool:
    """Tell whether every server has all there is of the stream."""
    return all(each["current"] for each in broker.info("TRIO")["cluster"]["replicas"])
