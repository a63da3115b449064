"""What the driver asks the source: where a micro-batch ends and how it is split, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.conftest import Broker

from penstock.errors import ClientError
from penstock.spark.options import parse_source
from penstock.spark.source.source import StreamReader

Reader = Callable[..., StreamReader]


@pytest.fixture
def reader(broker: Broker) -> Iterator[Reader]:
    """Return a function that makes a driver's reader."""
    readers = []

    def new(stream: str, *, cores: int = 2, **options: Any) -> StreamReader:
        given = {name: str(value) for name, value in options.items()}
        source = parse_source({"servers": broker.url, "stream": stream} | given)
        readers.append(StreamReader(*source, cores=cores))
        return readers[-1]

    yield new
    for each in readers:
        each.stop()


def ranges(driver: StreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    """Return what the tasks of a micro-batch read."""
    return [tuple(each.sequences) for each in driver.partitions(start, end)]  # type: ignore[attr-defined]


def test_a_batch_is_split_the_same_way_whoever_reads_it_again(
    broker: Broker, stream: str, reader: Reader
) -> None:
    broker.fill(stream, 100)
    first = reader(stream, minPartitions=3)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(90))
    planned = ranges(first, start, end)

    others = [reader(stream, minPartitions=7), reader(stream, cores=16)]

    assert [(1, 30), (31, 60), (61, 90)] == planned
    assert [planned, planned] == [ranges(other, start, end) for other in others]


def test_nothing_new_is_no_new_offset(broker: Broker, stream: str, reader: Reader) -> None:
    broker.fill(stream, 10)
    driver = reader(stream)
    end = driver.latestOffset(driver.initialOffset(), ReadAllAvailable())

    assert end == driver.latestOffset(end, ReadAllAvailable())
    assert end == reader(stream, cores=8).latestOffset(end, ReadAllAvailable())


def test_a_quiet_subject_of_a_busy_stream_makes_no_batches(
    broker: Broker, stream: str, reader: Reader
) -> None:
    driver = reader(stream, subjects=f"{stream}.quiet")
    start = driver.initialOffset()
    for _ in range(5):
        broker.fill(stream, 20)
        assert start == driver.latestOffset(start, ReadMaxRows(5))
    broker.publish([(f"{stream}.quiet", b"")])
    broker.fill(stream, 20)

    end = driver.latestOffset(start, ReadMaxRows(5))

    assert [(101, 105)] == ranges(driver, start, end)
    assert end == driver.latestOffset(end, ReadMaxRows(5))


def test_a_hole_is_skipped_in_one_step(broker: Broker, stream: str, reader: Reader) -> None:
    broker.fill(stream, 100)
    for sequence in range(2, 90):
        broker.run(lambda js, n=sequence: js.streams.delete_message(stream, n))
    driver = reader(stream)
    start = driver.latestOffset(driver.initialOffset(), ReadMaxRows(1))

    assert 1 == start["sequence"]
    assert 94 == driver.latestOffset(start, ReadMaxRows(5))["sequence"]


def test_a_checkpoint_with_nothing_to_read_stays_ahead_of_the_head(
    broker: Broker, stream: str, reader: Reader
) -> None:
    """Or what retention removes in front of it would look like a loss after a restart."""
    broker.update(stream, max_msgs=50)
    driver = reader(stream, subjects=f"{stream}.quiet")
    offset = driver.initialOffset()
    batches = 0
    for _ in range(40):
        broker.fill(stream, 10)
        latest = driver.latestOffset(offset, ReadAllAvailable())
        if latest != offset:
            batches += 1
            assert all(first > last for first, last in ranges(driver, offset, latest))
        offset = latest
        again = reader(stream, subjects=f"{stream}.quiet")
        assert again.latestOffset(offset, ReadAllAvailable())["sequence"] >= offset["sequence"]

    assert 0 < batches <= 20


def test_a_stream_that_ends_before_its_checkpoint_is_a_loss(
    broker: Broker, stream: str, reader: Reader
) -> None:
    broker.fill(stream, 10)
    driver = reader(stream)
    ahead = driver.initialOffset() | {"sequence": 20}

    with pytest.raises(ClientError, match="ends at sequence 10, before 20"):
        driver.latestOffset(ahead, ReadAllAvailable())


def test_a_stream_with_too_few_consumers_says_so(
    broker: Broker, stream: str, reader: Reader
) -> None:
    from penstock.spark.source.fetch import read_range
    from penstock.spark.source.position import Range

    name = f"{stream}_few"
    broker.create(name, max_consumers=1)
    broker.fill(name, 10)
    broker.run(lambda js: js.consumers.create(name, durable_name="other"))
    source = parse_source({"servers": broker.url, "stream": name})

    with pytest.raises(ClientError, match=r"`max_consumers`.*`minPartitions`"):
        list(read_range(*source, broker.info(name)["created"], Range(1, 10)))
