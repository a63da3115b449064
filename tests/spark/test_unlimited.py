"""What Spark before 4.2 asks after a crash within a micro-batch, without Spark around it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.spark.conftest import Broker

from penstock.errors import ClientError
from penstock.spark.options import parse_source
from penstock.spark.source.unlimited import UnlimitedReader

FIRST, MORE = 20, 10


def reader_of(broker: Broker, stream: str) -> UnlimitedReader:
    return UnlimitedReader(*parse_source({"servers": broker.url, "stream": stream}))


def sequences(reader: UnlimitedReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return the sequences that the tasks of a micro-batch read."""
    batches = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    return [sequence for batch in batches for sequence in batch["sequence"].to_pylist()]


@pytest.fixture
def crashed(broker: Broker, stream: str) -> dict[str, Any]:
    """Return the end of the first micro-batch of a query that is gone."""
    broker.fill(stream, FIRST)
    reader = reader_of(broker, stream)
    end = reader.latestOffset()
    assert list(range(1, FIRST + 1)) == sequences(reader, reader.initialOffset(), end)
    reader.stop()
    return end


def test_what_the_sink_has_of_the_first_batch_is_not_in_the_second(
    broker: Broker, stream: str, crashed: dict[str, Any]
) -> None:
    broker.fill(stream, MORE, first=FIRST + 1)
    reader = reader_of(broker, stream)
    # A sink that has the batch does not ask for its tasks.
    reader.initialOffset()

    found = sequences(reader, crashed, reader.latestOffset())

    assert list(range(FIRST + 1, FIRST + MORE + 1)) == found
    reader.stop()


def test_a_batch_read_again_is_followed_by_what_came_meanwhile(
    broker: Broker, stream: str, crashed: dict[str, Any]
) -> None:
    broker.fill(stream, MORE, first=FIRST + 1)
    reader = reader_of(broker, stream)

    assert list(range(1, FIRST + 1)) == sequences(reader, reader.initialOffset(), crashed)
    found = sequences(reader, crashed, reader.latestOffset())

    assert list(range(FIRST + 1, FIRST + MORE + 1)) == found
    reader.stop()


def test_a_stream_made_anew_after_a_crash_is_an_error(
    broker: Broker, stream: str, crashed: dict[str, Any]
) -> None:
    broker.run(lambda js: js.streams.delete(stream))
    broker.create(stream)
    broker.fill(stream, MORE)
    reader = reader_of(broker, stream)
    end = reader.latestOffset()

    with pytest.raises(ClientError, match="deleted and created again"):
        reader.partitions(crashed, end)
    reader.stop()


def test_a_head_lost_after_a_crash_is_an_error(
    broker: Broker, stream: str, crashed: dict[str, Any]
) -> None:
    broker.fill(stream, MORE, first=FIRST + 1)
    broker.run(lambda js: js.streams.purge(stream))
    reader = reader_of(broker, stream)
    end = reader.latestOffset()

    with pytest.raises(ClientError, match=f"messages {FIRST + 1} to {FIRST + MORE} .* are gone"):
        reader.partitions(crashed, end)
    reader.stop()


def test_what_an_end_leaves_out_is_remembered_as_gone(broker: Broker, stream: str) -> None:
    """A driver that knows no start answers with the streams that are there."""
    other = f"{stream}_other"
    broker.create(other)
    broker.fill(stream, FIRST)
    broker.fill(other, FIRST)
    names = {"stream": f"{stream},{other}", "failOnDataLoss": "false"}
    first = UnlimitedReader(*parse_source({"servers": broker.url} | names))
    start = first.latestOffset()
    broker.run(lambda js: js.streams.delete(other))
    second = UnlimitedReader(*parse_source({"servers": broker.url} | names))
    end = second.latestOffset()
    second.partitions(start, end)

    assert {stream} == end["streams"].keys()
    assert second.latestOffset()["streams"][other]["gone"]
    first.stop()
    second.stop()


def test_subjects_added_after_a_crash_are_an_error(broker: Broker, stream: str) -> None:
    broker.fill(stream, FIRST)
    options = {"servers": broker.url, "stream": stream}
    first = UnlimitedReader(*parse_source(options | {"subjects": f"{stream}.1"}))
    start = first.latestOffset()
    broker.fill(stream, MORE)
    second = UnlimitedReader(*parse_source(options))
    end = second.latestOffset()

    with pytest.raises(ClientError, match="`subjects` has `>` now"):
        second.partitions(start, end)
    first.stop()
    second.stop()
