"""When a micro-batch begins, how much it takes of which stream, and how many tasks it has."""

from __future__ import annotations

from typing import Any

from penstock.spark.options import SourceOptions, parse_source
from penstock.spark.source.admission import Patient, split, take
from penstock.spark.source.census import Census
from penstock.spark.source.position import Range
from penstock.spark.source.tasks import Piece, new_tasks


def source(**options: Any) -> SourceOptions:
    """Return the options of a source."""
    given = {name: str(value) for name, value in options.items()}
    return parse_source({"stream": "S"} | given)[1]


def waiting(*sizes: int) -> list[Census]:
    """Return what waits in streams without holes."""
    return [Census(Range(1, size)) for size in sizes]


def parts(*sizes: int, cores: int = 8, **options: Any) -> list[int]:
    """Return into how many ranges each stream is split."""
    return [len(ranges) for ranges in split(waiting(*sizes), source(**options), cores)]


def test_partitions_are_as_many_as_asked_for_and_none_is_too_large() -> None:
    assert [0] == parts(0, minPartitions=3)
    assert [1] == parts(10)
    assert [3] == parts(10, minPartitions=3)
    assert [4] == parts(10, maxMessagesPerPartition=3)
    assert [8] == parts(1_000_000)
    assert [100] == parts(10_000_000, cores=100)


def test_tasks_are_shared_out_by_what_waits() -> None:
    assert [6, 2] == parts(300_000, 100_000)
    assert [8, 1, 1] == parts(1_000_000, 10, 10)
    assert [1, 1, 1] == parts(10, 10, 10)


def test_a_limit_is_shared_out_by_what_waits() -> None:
    assert [75, 25] == [each.messages for each in take(waiting(300, 100), 100)]
    assert [99, 1] == [each.messages for each in take(waiting(100_000, 1), 100)]
    assert [300, 100] == [each.messages for each in take(waiting(300, 100), 400)]
    assert [300, 100] == [each.messages for each in take(waiting(300, 100), None)]


class Clock:
    """A clock that is set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_batch_waits_until_there_is_enough_or_it_waited_long_enough() -> None:
    clock = Clock()
    patient = Patient(source(minMessagesPerTrigger=100, maxTriggerDelay="30s"), clock)

    assert patient.is_due(waiting(1)), "the first does not wait"
    assert not patient.is_due(waiting(99))
    assert patient.is_due(waiting(60, 40))
    clock.now_s = 29.9
    assert not patient.is_due(waiting(1))
    clock.now_s = 30
    assert patient.is_due(waiting(1))
    assert not patient.is_due(waiting(1))


def test_messages_are_not_counted_again_before_there_can_be_enough() -> None:
    counted = []

    def count(asked: Range) -> int:
        counted.append(asked.last)
        return asked.size // 2

    patient = Patient(source(minMessagesPerTrigger=100), Clock())
    patient.is_due(waiting(1))
    due = [patient.is_due([Census(Range(1, last), count)]) for last in range(1, 201)]

    assert [*([False] * 199), True] == due
    assert len(counted) < 10


def test_small_streams_share_a_task_unless_tasks_are_asked_for() -> None:
    pieces = [Piece(f"S{n}", "", Range(1, 9000)) for n in range(5)]
    large = [Piece("L", "", Range(1, 5000)), Piece("L", "", Range(5001, 10_000))]

    def sizes(found: list[Any]) -> list[int]:
        return [len(task.pieces) for task in found]

    assert [2, 2, 1] == sizes(new_tasks(pieces, source()))
    assert [1, 1, 1, 1, 1] == sizes(new_tasks(pieces, source(minPartitions=2)))
    assert [1, 1] == sizes(new_tasks(large, source()))
