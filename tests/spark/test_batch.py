"""Reading a stream as a DataFrame, on real Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest
from tests.servers import ServerProcess, wait_until
from tests.spark.conftest import Broker, rows
from tests.spark.relay import Relay

Read = Callable[..., Any]
registration = import_module("penstock.spark.register")


def test_every_message_is_a_row(broker: Broker, stream: str, read: Read) -> None:
    ledger = broker.fill(stream, 2000)

    assert ledger == rows(read(stream, minPartitions=4))
    assert [] == broker.consumers(stream)


def test_a_row_has_headers_stream_and_time(broker: Broker, stream: str, read: Read) -> None:
    before = datetime.now(UTC)
    pairs = [("A", "1"), ("B", "x: y"), ("A", "2")]
    broker.run(lambda js: js.publish(f"{stream}.a", b"\x00\xff", headers=pairs))

    (row,) = read(stream).collect()

    assert pairs == [tuple(header) for header in row.headers]
    assert (stream, 1, b"\x00\xff") == (row.stream, row.sequence, bytes(row.data))
    assert abs(row.time.timestamp() - before.timestamp()) < 60


def test_an_empty_stream_gives_no_rows(stream: str, read: Read) -> None:
    assert [] == rows(read(stream))


def test_columns_can_be_left_out_by_schema_or_by_option(
    broker: Broker, stream: str, read: Read, spark: Any
) -> None:
    broker.fill(stream, 3)
    reader = spark.read.format("penstock").option("servers", broker.url).option("stream", stream)

    by_schema = reader.schema("sequence BIGINT, subject STRING").load()

    assert [(1,), (2,), (3,)] == [tuple(row) for row in read(stream, columns="sequence").collect()]
    assert ["sequence", "subject"] == by_schema.columns
    assert (1, f"{stream}.1") == tuple(by_schema.orderBy("sequence").first())


def test_subjects_are_filtered_by_the_server(broker: Broker, stream: str, read: Read) -> None:
    ledger = broker.fill(stream, 500)
    wanted = {f"{stream}.3", f"{stream}.7"}

    frame = read(stream, subjects=",".join(sorted(wanted)), minPartitions=3)

    assert [row for row in ledger if row[1] in wanted] == rows(frame)


def test_a_range_whose_end_does_not_match_the_subjects_ends_at_once(
    broker: Broker, stream: str, read: Read
) -> None:
    broker.publish([(f"{stream}.a", b"1"), *[(f"{stream}.b", b"2")] * 100])
    started_s = time.monotonic()

    assert [(1, f"{stream}.a", b"1")] == rows(read(stream, subjects=f"{stream}.a"))
    assert [] == rows(read(stream, subjects=f"{stream}.c"))
    assert time.monotonic() - started_s < 20


def test_positions_bound_what_is_read(broker: Broker, stream: str, read: Read) -> None:
    ledger = broker.fill(stream, 20)
    times = [broker.run(lambda js, n=n: js.streams.get(stream, seq=n)).time for n in range(1, 21)]
    middle = times[10]

    assert ledger[4:9] == rows(read(stream, startingPosition=5, endingPosition=9))
    # Messages that came together may have been stored at the same time.
    assert ledger[times.index(middle) :] == rows(read(stream, startingPosition=middle))
    assert [] == rows(read(stream, startingPosition="latest"))


def test_ten_thousand_subjects_are_read(broker: Broker, stream: str, read: Read) -> None:
    messages = [(f"{stream}.s{n}.é", b"%d" % n) for n in range(10_000)]
    broker.publish(messages)

    assert [(n + 1, *message) for n, message in enumerate(messages)] == rows(read(stream))


def test_a_huge_message_among_small_ones_is_read(broker: Broker, stream: str, read: Read) -> None:
    huge = bytes(1_000_000)
    messages = [(f"{stream}.a", b"x"), *[(f"{stream}.b", huge)] * 5, (f"{stream}.c", b"y")]
    broker.publish(messages)

    # A request of fewer bytes than one message must not stop the reader.
    frame = read(stream, fetchBytesMax=100_000, batchBytesMax=1000)

    assert [(n + 1, *message) for n, message in enumerate(messages)] == rows(frame)


def test_deleted_messages_are_left_out_and_are_no_loss(
    broker: Broker, stream: str, read: Read
) -> None:
    ledger = broker.fill(stream, 100)
    deleted = {7, 8, 50, 100}
    for sequence in deleted:
        broker.run(lambda js, n=sequence: js.streams.delete_message(stream, n))

    assert [row for row in ledger if row[0] not in deleted] == rows(read(stream, minPartitions=3))


def test_purged_messages_are_a_loss_only_to_who_asks_for_them(
    broker: Broker, stream: str, read: Read
) -> None:
    ledger = broker.fill(stream, 100)
    broker.run(lambda js: js.streams.purge(stream, seq=41))

    assert ledger[40:] == rows(read(stream))
    assert ledger[40:] == rows(read(stream, startingPosition=10, failOnDataLoss=False))
    with pytest.raises(Exception, match=r"messages 10 to 40 of stream .* are gone"):
        rows(read(stream, startingPosition=10))


def test_filters_narrow_what_is_read(broker: Broker, stream: str, read: Read) -> None:
    ledger = broker.fill(stream, 100)
    frame = read(stream, filterPushdown=True)

    assert ledger[89:] == rows(frame.where("sequence >= 90"))
    assert [ledger[2]] == rows(frame.where(f"subject = '{stream}.3' and sequence < 10"))
    assert [] == rows(frame.where("subject = 'somewhere.else'"))
    assert 10 == frame.where(f"subject like '{stream}.4%'").count()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strem": "x"}, "no option `strem`; did you mean `stream`?"),
        ({"maxMessagesPerTrigger": "x"}, "`maxMessagesPerTrigger` must be a whole number"),
        ({"columns": "size"}, "there is no `size`; valid: `subject`"),
        ({"stream": "NOWHERE"}, "there is no stream `NOWHERE`"),
        (
            {"servers": "nats://127.0.0.1:1", "retryTimeoutSeconds": "0.1"},
            "127.0.0.1:1: .*refused",
        ),
    ],
)
def test_what_is_wrong_is_said(stream: str, read: Read, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text):
        read(**({"stream": stream} | options)).count()


def test_a_query_that_stops_early_leaves_no_consumer(
    broker: Broker, stream: str, read: Read
) -> None:
    broker.fill(stream, 5000)

    assert 10 == len(read(stream, batchBytesMax=100).limit(10).collect())
    wait_until(lambda: broker.consumers(stream) == [], timeout_s=15)


def test_a_large_range_is_split_over_the_cores_of_the_cluster(
    broker: Broker, stream: str, spark: Any, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.publish([(f"{stream}.a", b"")] * 100_000)
    assert spark.sparkContext.defaultParallelism == registration.cores_of(spark)

    # A cluster has other cores than the machine of its driver.
    monkeypatch.setattr(registration, "cores_of", lambda spark: 5)
    registration.register(spark)
    parts = read(stream).rdd.getNumPartitions()
    monkeypatch.undo()
    registration.register(spark)

    assert 5 == parts


def test_several_streams_are_one_frame(broker: Broker, stream: str, read: Any) -> None:
    names = [f"{stream}_{letter}" for letter in "abc"]
    for count, name in enumerate(names, start=2):
        broker.create(name)
        broker.fill(name, count)
    ends = json.dumps({names[2]: 1})

    found = read(",".join(names), endingPosition=ends).groupBy("stream").count().collect()

    assert {names[0]: 2, names[1]: 3, names[2]: 1} == {row[0]: row[1] for row in found}


def test_tasks_of_a_python_worker_share_a_connection(
    broker: Broker, stream: str, read: Any, server: ServerProcess
) -> None:
    broker.fill(stream, 100)
    with Relay(server.port) as relay:
        frame = read(stream, servers=relay.url, minPartitions=20)
        assert 100 == frame.count()

        # One to plan, and one of each worker; Spark starts another if one is not back yet.
        assert relay.connections < 20
