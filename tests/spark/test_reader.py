"""What a task does, without Spark around it: on Penstock, on nats-server, and on three of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from tests.cluster import NODES, cluster_of
from tests.servers import PROGRAMS, ServerProcess
from tests.spark.conftest import Broker, elected
from tests.spark.relay import Relay

from penstock.errors import ClientError
from penstock.spark.connection import Connection
from penstock.spark.options import ConnectionOptions, SourceOptions, parse_sink, parse_source
from penstock.spark.sink.publish import SinkWindow
from penstock.spark.sink.sink import Encoder
from penstock.spark.source import fetch
from penstock.spark.source.fetch import read_range
from penstock.spark.source.position import Position, Range
from penstock.spark.source.stream import first_at, last_at, read_lag, read_state

Ledger = list[tuple[int, str, bytes]]
PAYLOAD_BYTES_MAX = 32 * 1024 * 1024


@pytest.fixture(scope="module", params=[*(program.name for program in PROGRAMS), "cluster"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """Return each server in turn, and then a cluster of three."""
    config = f"max_payload: {PAYLOAD_BYTES_MAX}"
    with ExitStack() as stack:
        if request.param == "cluster":
            servers = cluster_of(NODES, stack, config)
            yield elected(Broker(servers[0].url, replicas=NODES))
        else:
            program = next(each for each in PROGRAMS if each.name == request.param)
            flags = ("-js", "-sd", str(tmp_path_factory.mktemp("jetstream")))
            yield Broker(stack.enter_context(ServerProcess(program, config, *flags)).url)


@pytest.fixture
def options(broker: Broker, stream: str) -> tuple[ConnectionOptions, SourceOptions]:
    """Return the options of a reader of the stream."""
    return parse_source({"servers": broker.url, "stream": stream})


def rows(batches: Iterator[pa.RecordBatch]) -> Ledger:
    """Return what was read, in the order it came."""
    return [
        (row["sequence"], row["subject"], row["data"])
        for batch in batches
        for row in batch.to_pylist()
    ]


def read(broker: Broker, options: Any, first: int, last: int) -> Ledger:
    """Read a range of the stream as it is now."""
    created = broker.info(options[1].stream)["created"]
    return rows(read_range(*options, created, Range(first, last)))


def test_a_range_is_read_in_order(broker: Broker, stream: str, options: Any) -> None:
    ledger = broker.fill(stream, 3000)

    assert ledger[100:2500] == read(broker, options, 101, 2500)
    assert [] == broker.consumers(stream)


def test_an_empty_stream_has_no_rows(broker: Broker, stream: str, options: Any) -> None:
    assert [] == read(broker, options, 1, 0)
    with Connection(options[0], "test") as connection:
        assert (0, 0) == read_lag(connection, read_state(connection, stream), (), 0)


def test_only_the_subjects_asked_for_are_read(broker: Broker, stream: str, options: Any) -> None:
    ledger = broker.fill(stream, 1000)
    connection, source = options
    wanted = (f"{stream}.1", f"{stream}.8")

    found = read(broker, (connection, replace(source, subjects=wanted)), 1, 995)

    assert [row for row in ledger[:995] if row[1] in wanted] == found


def test_deleted_messages_are_left_out(broker: Broker, stream: str, options: Any) -> None:
    ledger = broker.fill(stream, 50)
    for sequence in (1, 20, 50):
        broker.run(lambda js, n=sequence: js.streams.delete_message(stream, n))

    connection, source = options
    found = read(broker, (connection, replace(source, fail_on_data_loss=False)), 1, 50)
    assert [row for row in ledger if row[0] not in (1, 20, 50)] == found


def test_large_messages_do_not_fit_a_request_and_are_read(
    broker: Broker, stream: str, options: Any
) -> None:
    messages = [(f"{stream}.a", bytes(500_000))] * 5 + [(f"{stream}.b", b"x")] * 100
    broker.publish(messages)
    connection, source = options
    small = replace(source, fetch_bytes_max=60_000, batch_bytes_max=1000)

    found = read(broker, (connection, small), 1, 105)

    assert [(n + 1, *message) for n, message in enumerate(messages)] == found


def test_a_huge_message_is_read_between_small_ones(
    broker: Broker, stream: str, options: Any
) -> None:
    huge = bytes(range(256)) * (20 * 1024 * 1024 // 256)
    messages = [(f"{stream}.a", b"before"), (f"{stream}.b", huge), (f"{stream}.a", b"after")]
    broker.publish(messages)

    found = read(broker, options, 1, 3)

    assert [(n + 1, *message) for n, message in enumerate(messages)] == found


def test_ten_thousand_subjects_are_read(broker: Broker, stream: str, options: Any) -> None:
    messages = [(f"{stream}.{n}", b"%d" % n) for n in range(10_000)]
    broker.publish(messages)

    assert [(n + 1, *message) for n, message in enumerate(messages)] == read(
        broker, options, 1, 10_000
    )


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("subject", ["", ">", "3"])
def test_retention_that_overtakes_the_reader_is_a_loss(
    broker: Broker,
    stream: str,
    options: Any,
    monkeypatch: pytest.MonkeyPatch,
    subject: str,
    fails: bool,
) -> None:
    """Whichever subjects are read."""
    monkeypatch.setattr(fetch, "PULL_MESSAGES_MAX", 20)
    filled = broker.fill(stream, 1000)
    ledger = [row for row in filled if subject != "3" or row[1].endswith(".3")]
    connection, source = options
    subjects = (f"{stream}.{subject}",) if subject else ()
    small = replace(source, batch_bytes_max=1, fail_on_data_loss=fails, subjects=subjects)
    batches = read_range(connection, small, broker.info(stream)["created"], Range(1, 1000))
    begin = rows(iter([next(batches)]))

    broker.update(stream, max_msgs=10)

    if fails:
        with pytest.raises(ClientError, match=r"gone.*`failOnDataLoss`"):
            rows(batches)
    else:
        found = begin + rows(batches)
        assert ledger[-1] == found[-1]
        assert set(found) <= set(ledger)
        assert len(found) < len(ledger)
    assert [] == broker.consumers(stream)


@pytest.mark.parametrize("subjects", [(), (">",)])
def test_a_purge_of_all_that_is_left_is_a_loss(
    broker: Broker,
    stream: str,
    options: Any,
    monkeypatch: pytest.MonkeyPatch,
    subjects: tuple[str, ...],
) -> None:
    monkeypatch.setattr(fetch, "PULL_MESSAGES_MAX", 20)
    broker.fill(stream, 1000)
    connection, source = options
    small = replace(source, batch_bytes_max=1, subjects=subjects)
    batches = read_range(connection, small, broker.info(stream)["created"], Range(1, 1000))
    next(batches)

    broker.run(lambda js: js.streams.purge(stream))

    with pytest.raises(ClientError, match=r"gone.*`failOnDataLoss`"):
        rows(batches)


def test_a_head_that_moves_behind_the_reader_is_no_loss(
    broker: Broker, stream: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although there were holes, which were there before."""
    monkeypatch.setattr(fetch, "PULL_MESSAGES_MAX", 20)
    ledger = broker.fill(stream, 1000)
    wanted = [row for row in ledger if row[1] == f"{stream}.3"]
    connection, source = options
    small = replace(source, batch_bytes_max=1, subjects=(f"{stream}.3",))
    batches = read_range(connection, small, broker.info(stream)["created"], Range(1, 1000))
    found = [row for _ in range(4) for row in rows(iter([next(batches)]))]

    broker.run(lambda js: js.streams.purge(stream, seq=found[0][0]))

    assert wanted == found + rows(batches)


@pytest.mark.parametrize("subjects", [(), (">",)])
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_replica_that_has_nothing_yet_does_not_end_a_range(
    broker: Broker, stream: str, options: Any, retention: str, subjects: tuple[str, ...]
) -> None:
    """It says so of a consumer, or of a direct get, and the leader knows better."""
    name = f"{stream}_replicated"
    broker.create(name, retention=retention, allow_direct=True)
    ledger = broker.fill(name, 1500)
    connection, source = options
    asked = []

    def behind(data: bytes) -> bytes:
        """Have the first to ask start where this server has nothing either."""
        for field in (b'"opt_start_seq": 1001', b'"seq": 1001, "batch"'):
            if field in data and not asked:
                asked.append(field)
                return data.replace(field, field.replace(b"1001", b"9001"))
        return data

    port = int(broker.url.rpartition(":")[2])
    with Relay(port, behind) as relay:
        through = replace(connection, servers=relay.url)
        found = read(broker, (through, replace(source, stream=name, subjects=subjects)), 1001, 1500)

    assert asked
    assert ledger[1000:] == found


def test_a_consumer_deleted_while_it_is_read_is_made_anew(
    broker: Broker, stream: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PULL_MESSAGES_MAX", 100)
    ledger = broker.fill(stream, 1000)
    connection, source = options
    created = broker.info(stream)["created"]
    small = replace(source, batch_bytes_max=1)
    batches = read_range(connection, small, created, Range(1, 1000))

    found = rows(iter([next(batches)]))
    for consumer in broker.consumers(stream):
        broker.run(lambda js, name=consumer: js.consumers.delete(stream, name))
    found += rows(batches)

    assert ledger == found
    assert [] == broker.consumers(stream)


def test_a_time_is_a_position(broker: Broker, stream: str, options: Any) -> None:
    # A server may store what comes together at one time.
    broker.fill(stream, 5)
    broker.fill(stream, 5, first=6)
    time = datetime.fromisoformat(broker.run(lambda js: js.streams.get(stream, seq=6)).time)

    with Connection(options[0], "test") as connection:
        state = read_state(connection, stream)
        assert 6 == first_at(connection, state, Position("time", time=time))
        assert 1 == first_at(
            connection, state, Position("time", time=datetime(2020, 1, 1, tzinfo=UTC))
        )
        assert 11 == first_at(connection, state, Position("time", time=datetime.now(UTC)))


def test_a_time_is_included_in_what_it_ends(broker: Broker, stream: str, options: Any) -> None:
    broker.fill(stream, 5)
    broker.fill(stream, 5, first=6)
    broker.run(lambda js: js.streams.delete_message(stream, 7))
    at = [
        datetime.fromisoformat(broker.run(lambda js, n=n: js.streams.get(stream, seq=n)).time)
        for n in (5, 6, 10)
    ]

    with Connection(options[0], "test") as connection:
        state = read_state(connection, stream)
        times = [Position("time", time=time) for time in (*at, datetime(2020, 1, 1, tzinfo=UTC))]
        assert [5, 10, 0] == [last_at(connection, state, times[n]) for n in (0, 2, 3)]
        assert last_at(connection, state, times[1]) >= 6


def test_a_stream_made_anew_is_not_read(broker: Broker, stream: str, options: Any) -> None:
    broker.fill(stream, 10)

    with pytest.raises(ClientError, match="was deleted and created again"):
        rows(read_range(*options, "2020-01-01T00:00:00Z", Range(1, 10)))


def test_a_work_queue_is_left_to_its_workers(broker: Broker, stream: str, options: Any) -> None:
    name = f"{stream}_queue"
    broker.create(name, retention="workqueue")
    broker.fill(name, 10)
    connection, source = options

    with pytest.raises(ClientError, match=r"is a work queue, whose messages only.*`allow_direct`"):
        read(broker, (connection, replace(source, stream=name)), 1, 10)
    assert 10 == broker.info(name)["state"]["messages"]


def test_a_work_queue_is_read_in_place(broker: Broker, stream: str, options: Any) -> None:
    name = f"{stream}_queue"
    broker.create(name, retention="workqueue", allow_direct=True)
    ledger = broker.fill(name, 1200)
    broker.run(lambda js: js.streams.delete_message(name, 700))
    connection, source = options
    wanted = (f"{name}.1", f"{name}.8")

    whole = read(broker, (connection, replace(source, stream=name)), 10, 1150)
    some = read(broker, (connection, replace(source, stream=name, subjects=wanted)), 1, 1200)

    assert [row for row in ledger[9:1150] if row[0] != 700] == whole
    assert [row for row in ledger if row[1] in wanted] == some
    assert 1199 == broker.info(name)["state"]["messages"]
    assert [] == broker.consumers(name)


def test_lag_is_what_was_not_read_and_how_long_it_waits(
    broker: Broker, stream: str, options: Any
) -> None:
    broker.fill(stream, 20)
    with Connection(options[0], "test") as connection:
        state = read_state(connection, stream)
        behind = read_lag(connection, state, (), 15)
        others = read_lag(connection, state, (f"{stream}.other",), 15)

        assert 5 == behind.messages
        assert 0 < behind.seconds < 60
        assert (0, 0) == read_lag(connection, state, (), 20)
        assert (0, 0) == others


def identified(count: int) -> pa.RecordBatch:
    """Return rows with an id each."""
    numbers = range(count)
    return pa.record_batch(
        {"data": [b"%d" % n for n in numbers], "message_id": [f"row-{n}" for n in numbers]}
    )


def test_what_is_published_twice_is_stored_once(broker: Broker, stream: str) -> None:
    connection, sink = parse_sink({"servers": broker.url, "subject": f"{stream}.a"})
    batch = identified(5000)
    results = []
    for _ in range(2):
        with SinkWindow(connection, 500) as window:
            window.add(*Encoder(sink, "job-1").encode(batch, window.reply_prefix))
            window.flush()
            results.append((window.acked, window.duplicates))

    assert [(5000, 0), (5000, 5000)] == results
    assert 5000 == broker.info(stream)["state"]["messages"]


def test_a_window_is_sent_again_on_a_new_connection(broker: Broker, stream: str) -> None:
    connection, sink = parse_sink({"servers": broker.url, "subject": f"{stream}.a"})
    batch = identified(2000)
    with SinkWindow(connection, 5000) as window:
        window.add(*Encoder(sink, "job-1").encode(batch, window.reply_prefix))
        # As if the network had gone away: nothing is acked, and nobody can know what was stored.
        window._connection._sock.shutdown(2)  # type: ignore[union-attr]
        window.flush()

    assert 2000 == window.acked
    assert 2000 == broker.info(stream)["state"]["messages"]


def test_a_publisher_is_held_to_its_rate(broker: Broker, stream: str) -> None:
    import time

    connection, sink = parse_sink({"servers": broker.url, "subject": f"{stream}.a"})
    batch = identified(100)
    started_s = time.monotonic()
    with SinkWindow(connection, 500, 200) as window:
        window.add(*Encoder(sink, "job-1").encode(batch, window.reply_prefix))
        window.flush()

    assert time.monotonic() - started_s >= 0.4
