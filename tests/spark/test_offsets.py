"""What the driver asks the source: where a micro-batch ends and how it is split, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.servers import wait_until
from tests.spark.conftest import Broker

from penstock.client import JetStream
from penstock.errors import ClientError, StoreError
from penstock.spark.connection import Connection
from penstock.spark.options import parse_source
from penstock.spark.source.limited import StreamReader
from penstock.spark.source.source import RangeReader as BatchReader
from penstock.spark.source.streams import Finder

RangeReader = Callable[..., StreamReader]


@pytest.fixture
def reader(broker: Broker) -> Iterator[RangeReader]:
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
    return [
        tuple(piece.sequences)
        for task in driver.partitions(start, end)
        for piece in task.pieces  # type: ignore[attr-defined]
    ]


def delete(broker: Broker, stream: str, sequences: Iterable[int]) -> None:
    """Delete single messages."""

    async def work(js: JetStream) -> None:
        for each in sequences:
            await js.streams.delete_message(stream, each)

    broker.run(work)


def sequence(offset: Any, stream: str) -> int:
    """Return up to where an offset says that a stream was read."""
    return int(offset["streams"][stream]["sequence"])


def test_a_batch_is_split_the_same_way_whoever_reads_it_again(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    broker.fill(stream, 100)
    first = reader(stream, minPartitions=3)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadMaxRows(90))
    planned = ranges(first, start, end)

    others = [reader(stream, minPartitions=7), reader(stream, cores=16)]

    assert [(1, 30), (31, 60), (61, 90)] == planned
    assert [planned, planned] == [ranges(other, start, end) for other in others]


def test_nothing_new_is_no_new_offset(broker: Broker, stream: str, reader: RangeReader) -> None:
    broker.fill(stream, 10)
    driver = reader(stream)
    end = driver.latestOffset(driver.initialOffset(), ReadAllAvailable())

    assert end == driver.latestOffset(end, ReadAllAvailable())
    assert end == reader(stream, cores=8).latestOffset(end, ReadAllAvailable())


def test_a_quiet_subject_of_a_busy_stream_makes_no_batches(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    driver = reader(stream, subjects=f"{stream}.quiet")
    start = driver.initialOffset()
    for _ in range(5):
        broker.fill(stream, 20)
        assert start == driver.latestOffset(start, ReadMaxRows(5))
    broker.publish([(f"{stream}.quiet", b"")])
    broker.fill(stream, 20)

    end = driver.latestOffset(start, ReadMaxRows(5))

    assert [(101, 121)] == ranges(driver, start, end)
    assert end == driver.latestOffset(end, ReadMaxRows(5))


def test_a_hole_is_skipped_in_one_step(broker: Broker, stream: str, reader: RangeReader) -> None:
    broker.fill(stream, 100)
    delete(broker, stream, range(2, 90))
    driver = reader(stream)
    start = driver.latestOffset(driver.initialOffset(), ReadMaxRows(1))

    assert 1 <= sequence(start, stream) < 90
    assert 94 == sequence(driver.latestOffset(start, ReadMaxRows(5)), stream)


def test_a_checkpoint_with_nothing_to_read_stays_ahead_of_the_head(
    broker: Broker, stream: str, reader: RangeReader
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
        next_offset = again.latestOffset(offset, ReadAllAvailable())
        assert sequence(next_offset, stream) >= sequence(offset, stream)

    assert 0 < batches <= 20


def test_a_stream_that_ends_before_its_checkpoint_is_a_loss(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    broker.fill(stream, 10)
    driver = reader(stream)
    ahead = driver.initialOffset()
    ahead["streams"][stream]["sequence"] = 20

    with pytest.raises(ClientError, match="ends at sequence 10, before 20"):
        driver.latestOffset(ahead, ReadAllAvailable())


def test_a_stream_with_too_few_consumers_says_so(
    broker: Broker, stream: str, reader: RangeReader
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


def test_ranges_of_a_sparse_stream_hold_as_many_messages_each(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    """Whether messages were deleted, or are on other subjects."""
    broker.publish([(f"{stream}.busy", b"")] * 900 + [(f"{stream}.rare", b"")] * 100)
    delete(broker, stream, range(2, 800))
    held = [1, *range(800, 1001)]
    rare = reader(stream, subjects=f"{stream}.rare", minPartitions=4)
    rest = reader(stream, minPartitions=4)

    def sizes(driver: StreamReader, messages: list[int]) -> list[int]:
        start = driver.initialOffset()
        found = ranges(driver, start, driver.latestOffset(start, ReadAllAvailable()))
        return [sum(first <= n <= last for n in messages) for first, last in found]

    assert [25, 25, 25, 25] == sizes(rare, list(range(901, 1001)))
    assert 202 == sum(sizes(rest, held))
    assert max(sizes(rest, held)) <= 60
    assert [] == broker.consumers(stream)


def test_a_batch_job_is_balanced_too(broker: Broker, stream: str) -> None:
    broker.publish([(f"{stream}.busy", b"")] * 900 + [(f"{stream}.rare", b"")] * 100)
    given = {"stream": stream, "subjects": f"{stream}.rare", "minPartitions": "2"}
    tasks = BatchReader(*parse_source({"servers": broker.url} | given)).partitions()

    assert [(1, 950), (951, 1000)] == [tuple(task.pieces[0].sequences) for task in tasks]  # type: ignore[attr-defined]


def test_a_limit_counts_messages(broker: Broker, stream: str, reader: RangeReader) -> None:
    """Of the subjects that are read."""
    broker.fill(stream, 2000)
    driver = reader(stream, subjects=f"{stream}.3", maxMessagesPerTrigger=50)
    start, sizes = driver.initialOffset(), []
    while (end := driver.latestOffset(start, driver.getDefaultReadLimit())) != start:
        first, last = ranges(driver, start, end)[0]
        sizes.append(sum(n % 10 == 3 for n in range(first, last + 1)))
        start = end

    assert 200 == sum(sizes)
    assert max(sizes) <= 50
    assert len(sizes) <= 6


def test_a_stream_that_allows_no_more_consumers_is_split_by_sequences(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    name = f"{stream}_full"
    broker.create(name, max_consumers=1)
    broker.fill(name, 100)
    broker.run(lambda js: js.consumers.create(name, durable_name="other"))
    driver = reader(name, subjects=f"{name}.3", minPartitions=2)
    start = driver.initialOffset()

    found = ranges(driver, start, driver.latestOffset(start, ReadAllAvailable()))

    assert [(3, 51), (52, 100)] == found


def test_bytes_of_a_batch_are_known_where_messages_have_grown(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    """The average of the stream would allow 93 of the large ones at a time."""
    broker.publish([(f"{stream}.a", b"")] * 1000 + [(f"{stream}.a", bytes(10_000))] * 100)
    driver = reader(stream, maxBytesPerTrigger=100_000)
    start, sizes = driver.initialOffset(), []
    while (end := driver.latestOffset(start, driver.getDefaultReadLimit())) != start:
        (found,) = ranges(driver, start, end)
        sizes.append(sum(100 if n <= 1000 else 10_100 for n in range(found[0], found[1] + 1)))
        start = end

    assert 1100 * 100 + 100 * 10_000 == sum(sizes)
    assert max(sizes) <= 200_000
    assert len(sizes) <= 16


def test_a_batch_waits_for_enough_messages_but_not_for_ever(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    patient = reader(stream, minMessagesPerTrigger=30, maxTriggerDelay="1h")
    hasty = reader(stream, minMessagesPerTrigger=30, maxTriggerDelay="1ms")
    limit = patient.getDefaultReadLimit()
    broker.fill(stream, 1)
    first = patient.latestOffset(patient.initialOffset(), limit)
    assert 1 == sequence(first, stream)
    assert first == hasty.latestOffset(hasty.initialOffset(), limit)

    broker.fill(stream, 29)
    assert first == patient.latestOffset(first, limit)
    assert 30 == sequence(hasty.latestOffset(first, limit), stream)
    assert 30 == sequence(patient.latestOffset(first, ReadAllAvailable()), stream)
    broker.fill(stream, 1)
    assert 31 == sequence(patient.latestOffset(first, limit), stream)

    broker.fill(stream, 1)
    patient.prepareForTriggerAvailableNow()
    assert 32 == sequence(patient.latestOffset(first, limit), stream)


@pytest.fixture
def pair(broker: Broker, stream: str) -> tuple[str, str]:
    """Return two streams with 30 and 10 messages."""
    names = f"{stream}_a", f"{stream}_b"
    for name, count in zip(names, (30, 10), strict=True):
        broker.create(name)
        broker.fill(name, count)
    return names


def places(offset: Any) -> dict[str, int]:
    """Return up to where the streams of an offset were read."""
    return {name: mark["sequence"] for name, mark in offset["streams"].items()}


def test_several_streams_are_read_together(
    broker: Broker, pair: tuple[str, str], reader: RangeReader
) -> None:
    a, b = pair
    driver = reader(f"{b}, {a}", maxMessagesPerTrigger=20)
    start = driver.initialOffset()
    end = driver.latestOffset(start, driver.getDefaultReadLimit())

    assert {a: 0, b: 0} == places(start)
    assert {a: 15, b: 5} == places(end)
    assert [(1, 15), (1, 5)] == ranges(driver, start, end)
    assert 20 == driver.reportLatestOffset()["behindMessages"]
    assert 1 == len(driver.partitions(start, end)), "small streams share a task"

    broker.fill(b, 7)
    later = driver.latestOffset(driver.latestOffset(end, ReadAllAvailable()), ReadAllAvailable())
    broker.fill(b, 3)
    last = driver.latestOffset(later, ReadAllAvailable())
    assert {a: 30, b: 20} == places(last)
    assert [(18, 20)] == ranges(driver, later, last)


def test_every_stream_has_a_position_of_its_own(
    broker: Broker, pair: tuple[str, str], reader: RangeReader
) -> None:
    a, b = pair
    time = broker.run(lambda js: js.streams.get(b, seq=1)).time

    def begun(**positions: Any) -> dict[str, int]:
        given = json.dumps({f"{a[:-1]}{name}": value for name, value in positions.items()})
        return places(reader(f"{a},{b}", startingPosition=given).initialOffset())

    assert {a: 16, b: 0} == begun(a=17)
    assert {a: 30, b: 0} == begun(a="latest", b=time)


def test_a_pattern_finds_streams_while_a_query_runs(
    broker: Broker, stream: str, pair: tuple[str, str], reader: RangeReader
) -> None:
    driver = StreamReader(
        *parse_source(
            {
                "servers": broker.url,
                "streamPattern": f"{stream}_.",
                "startingPosition": "latest",
            }
        )
    )
    try:
        end = driver.initialOffset()
        assert [30, 10] == list(places(end).values())
        assert end == driver.latestOffset(end, ReadAllAvailable())

        broker.create(f"{stream}_c")
        broker.create(f"{stream}_not_this")
        broker.fill(f"{stream}_c", 5)
        found = wait_for_change(driver, end)

        assert [30, 10, 5] == list(places(found).values())
        assert [(1, 5)] == ranges(driver, end, found)
    finally:
        driver.stop()


def wait_for_change(driver: StreamReader, offset: Any) -> Any:
    """Return the next offset that is another."""
    wait_until(lambda: driver.latestOffset(offset, ReadAllAvailable()) != offset, timeout_s=30)
    return driver.latestOffset(offset, ReadAllAvailable())


def test_many_streams_are_not_asked_for_all_the_time(broker: Broker, stream: str) -> None:
    names = [f"{stream}_{number}" for number in range(25)]
    for name in names:
        broker.create(name)
    now_s = 0.0
    options, source = parse_source({"servers": broker.url, "stream": ",".join(names)})
    finder = Finder(source, clock=lambda: now_s)

    def last() -> int:
        return finder.find(connection)[names[0]].last_sequence

    with Connection(options, "test") as connection:
        assert 0 == last()
        broker.fill(names[0], 1)
        assert 0 == last()
        now_s = 1.0
        assert 1 == last()


def test_a_deleted_stream_is_a_loss(
    broker: Broker, pair: tuple[str, str], reader: RangeReader
) -> None:
    a, b = pair
    strict, lax = reader(f"{a},{b}"), reader(f"{a},{b}", failOnDataLoss=False)
    start = strict.initialOffset()
    planned = strict.latestOffset(start, ReadAllAvailable())
    tasks = lax.partitions(start, planned)
    broker.run(lambda js: js.streams.delete(b))

    for plan in (
        lambda driver: driver.latestOffset(planned, ReadAllAvailable()),
        lambda driver: driver.partitions(start, planned),
    ):
        with pytest.raises(ClientError, match=f"`{b}` was deleted.*`failOnDataLoss`"):
            plan(strict)
    assert {a: 30, b: 10} == places(lax.latestOffset(planned, ReadAllAvailable()))
    assert [(1, 30)] == ranges(lax, start, planned)
    assert 30 == sum(batch.num_rows for task in tasks for batch in lax.read(task))
    with pytest.raises(ClientError, match=f"`{b}` was deleted.*`failOnDataLoss`"):
        [list(strict.read(task)) for task in tasks]


def test_a_task_that_fails_tells_of_all_that_its_batch_loses(
    broker: Broker, stream: str, reader: RangeReader, caplog: pytest.LogCaptureFixture
) -> None:
    """What another task has read is not finished, and cannot be read again."""
    broker.fill(stream, 120)
    options = {"minPartitions": 3, "startingPosition": 11}
    strict, lax = reader(stream, **options), reader(stream, **options, failOnDataLoss=False)
    start = strict.initialOffset()
    first, second, _ = strict.partitions(start, strict.latestOffset(start, ReadMaxRows(90)))
    assert 30 == sum(batch.num_rows for batch in strict.read(first))
    broker.run(lambda js: js.streams.purge(stream, seq=51))

    with pytest.raises(ClientError, match="messages 11 to 50 of stream"):
        list(strict.read(second))
    assert 20 == sum(batch.num_rows for batch in lax.read(second))
    assert "messages 41 to 50 of stream" in caplog.text


def test_streams_can_be_added_to_a_query_but_not_taken_away(
    broker: Broker, pair: tuple[str, str], reader: RangeReader
) -> None:
    a, b = pair
    alone, both = reader(a), reader(f"{a},{b}")
    offset = alone.latestOffset(alone.initialOffset(), ReadAllAvailable())
    end = both.latestOffset(offset, ReadAllAvailable())

    assert {a: 30, b: 10} == places(end)
    assert [(1, 10)] == ranges(both, offset, end)
    for without in (alone, reader(a, failOnDataLoss=False)):
        with pytest.raises(ClientError, match=f"the checkpoint is of stream `{b}`"):
            without.latestOffset(end, ReadAllAvailable())
    with pytest.raises(ClientError, match="there is no stream `misspelt`"):
        reader(f"{a},misspelt").latestOffset(offset, ReadAllAvailable())


def test_a_stream_that_is_gone_is_remembered(
    broker: Broker, pair: tuple[str, str], reader: RangeReader
) -> None:
    """Or another one under its name would be read as if it went on."""
    a, b = pair
    lax = reader(f"{a},{b}", failOnDataLoss=False)
    read = lax.latestOffset(lax.initialOffset(), ReadAllAvailable())
    broker.run(lambda js: js.streams.delete(b))
    without = lax.latestOffset(read, ReadAllAvailable())

    assert [] == ranges(lax, read, without)
    assert without == lax.latestOffset(without, ReadAllAvailable())
    assert without == reader(f"{a},{b}").latestOffset(without, ReadAllAvailable()), "told before"
    assert without == reader(a).latestOffset(without, ReadAllAvailable())

    broker.create(b)
    broker.fill(b, 7)
    for options in ({}, {"failOnDataLoss": False}):
        with pytest.raises(ClientError, match=f"`{b}` was deleted and created again"):
            reader(f"{a},{b}", **options).latestOffset(without, ReadAllAvailable())
    assert without == reader(a).latestOffset(without, ReadAllAvailable())


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_stream_that_is_gone_can_be_left_out_at_once(
    broker: Broker, pair: tuple[str, str], reader: RangeReader, is_made_anew: bool
) -> None:
    """Also of a micro-batch that was planned with it."""
    a, b = pair
    both = reader(f"{a},{b}")
    start = both.initialOffset()
    read = both.latestOffset(start, ReadAllAvailable())
    broker.run(lambda js: js.streams.delete(b))
    if is_made_anew:
        broker.create(b)
    strict, lax = reader(a), reader(a, failOnDataLoss=False)

    for question in (strict.latestOffset, strict.partitions):
        given = (read, ReadAllAvailable()) if question == strict.latestOffset else (start, read)
        with pytest.raises(ClientError, match=f"`{b}` was deleted before .*`failOnDataLoss` = f"):
            question(*given)
    assert [(1, 30)] == ranges(lax, start, read)
    without = lax.latestOffset(read, ReadAllAvailable())
    assert {a: 30, b: 10} == places(without)
    assert without == strict.latestOffset(without, ReadAllAvailable()), "told before"
    with pytest.raises(ClientError, match=f"`{b}` was deleted"):
        both.latestOffset(read, ReadAllAvailable())


def test_a_checkpoint_that_says_nothing_of_streams_is_told(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    """Damaged, or of another source."""
    for offset in (
        {},
        {"topic": {"0": 17}},
        {"streams": {stream: 17}},
        {"streams": {stream: {"created": "2026-11-15T08:00:00Z"}}},
        {"streams": {stream: {"created": "2026-11-15T08:00:00Z", "sequence": "many"}}},
    ):
        with pytest.raises(StoreError, match="the checkpoint is damaged, or of another source: `"):
            reader(stream).latestOffset(offset, ReadAllAvailable())


def test_subjects_can_be_taken_from_a_query_but_not_added(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    """What is older of them would never be read, nor would anybody say so."""
    broker.publish([(f"{stream}.{'ab'[n % 2]}", b"") for n in range(20)])
    both = reader(stream, subjects=f"{stream}.a, {stream}.b")
    one = reader(stream, subjects=f"{stream}.a")
    first = both.latestOffset(both.initialOffset(), ReadMaxRows(10))
    last = one.latestOffset(first, ReadAllAvailable())

    assert (10, 20) == (sequence(first, stream), sequence(last, stream))
    for wider in (f"{stream}.a, {stream}.b", f"{stream}.*"):
        with pytest.raises(
            ClientError, match=r"`subjects` has .*, as 2 on `\w+\.b`.*query of its own"
        ):
            reader(stream, subjects=wider).latestOffset(last, ReadAllAvailable())
    with pytest.raises(ClientError, match="`subjects` has `>` now"):
        reader(stream).latestOffset(last, ReadAllAvailable())


def test_subjects_may_ask_for_the_same_in_other_words(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    """What the stream holds decides where the words do not, and what it holds that is older."""
    words = ("", ">", f"{stream}.>", f"{stream}.*.*, {stream}.*, {stream}.*", "*.*, *.*.*")
    broker.publish([(f"{stream}.{'ab'[n % 2]}", b"") for n in range(10)])
    broker.publish([(f"{stream}.{n}.more", b"") for n in range(10)])
    readers = [reader(stream, subjects=each) for each in words]
    marks = [each.latestOffset(each.initialOffset(), ReadAllAvailable()) for each in readers]

    for mark in marks:
        assert [20] * len(words) == [
            sequence(each.latestOffset(mark, ReadAllAvailable()), stream) for each in readers
        ]
    broker.publish([(f"{stream}.a", b""), (f"{stream}.far.too.deep", b"")])
    for mark in marks:
        assert [(21, 22)] == ranges(
            readers[0], mark, readers[0].latestOffset(mark, ReadAllAvailable())
        )
    (narrow, wide) = readers[3], reader(stream)
    passed = narrow.latestOffset(marks[0], ReadAllAvailable())
    broker.publish([(f"{stream}.b", b"")])
    passed = narrow.latestOffset(passed, ReadAllAvailable())
    assert 23 == sequence(passed, stream)
    with pytest.raises(ClientError, match=r"has `>` now.* as 22 on `\w+\.far\.too\.deep`"):
        wide.latestOffset(passed, ReadAllAvailable())


def test_a_subject_that_has_nothing_older_can_be_added(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    broker.publish([(f"{stream}.a", b"")] * 10)
    one = reader(stream, subjects=f"{stream}.a")
    read = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    broker.publish([(f"{stream}.b", b"")] * 5)
    both = reader(stream, subjects=f"{stream}.a, {stream}.b")

    assert [(11, 15)] == ranges(both, read, both.latestOffset(read, ReadAllAvailable()))


def test_a_batch_is_read_again_on_the_subjects_it_was_planned_with(
    broker: Broker, stream: str, reader: RangeReader
) -> None:
    broker.publish([(f"{stream}.{'ab'[n % 2]}", b"") for n in range(20)])
    planner = reader(stream, subjects=f"{stream}.a")
    start = planner.initialOffset()
    end = planner.latestOffset(start, ReadAllAvailable())

    def rows(driver: StreamReader) -> int:
        tasks = driver.partitions(start, end)
        return sum(batch.num_rows for task in tasks for batch in driver.read(task))

    assert 10 == rows(planner)
    assert [10, 10] == [rows(reader(stream)), rows(reader(stream, subjects=f"{stream}.b"))]
