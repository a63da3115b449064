"""An ack waits for a few changes of files at most, however many others have asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.test_creation import CountingDisk, ask
from tests.unit.jetstream.world import World, error

from penstock.jetstream.commit import CHANGES_MAX
from penstock.jetstream.files.rubbish import SWEPT_MAX
from penstock.jetstream.store.values import complete

FEW = CHANGES_MAX + 4
MANY = 4 * FEW


def make_streams(world: World, count: int) -> None:
    for number in range(count):
        ask(world, f"STREAM.CREATE.S{number}", name=f"S{number}", subjects=[f"s{number}"])


def update_streams(world: World, count: int) -> None:
    for number in range(count):
        subjects = [f"s{number}", f"t{number}"]
        ask(world, f"STREAM.UPDATE.S{number}", name=f"S{number}", subjects=subjects)


def delete_streams(world: World, count: int) -> None:
    for number in range(count):
        ask(world, f"STREAM.DELETE.S{number}")


def make_consumer(world: World, stream: str, name: str) -> None:
    config = {"name": name, "durable_name": name}
    ask(world, f"CONSUMER.CREATE.{stream}.{name}", stream_name=stream, config=config)


def make_consumers(world: World, count: int) -> None:
    for number in range(count):
        make_consumer(world, "ONE", f"c{number}")


def delete_consumers(world: World, count: int) -> None:
    for number in range(count):
        ask(world, f"CONSUMER.DELETE.ONE.c{number}")


def make_a_consumer_of_each(world: World, count: int) -> None:
    for number in range(count):
        make_consumer(world, f"S{number}", "c")


def delete_the_stream_of_all(world: World, count: int) -> None:
    ask(world, "STREAM.DELETE.ONE")


Step = Callable[[World, int], None]


def changes_before_an_ack(world: World, steps: tuple[Step, ...], count: int) -> int:
    """Ask for much, publish, and return what happens on the disk until the ack comes."""
    world.create("MINE", storage="file", subjects=["mine"])
    world.create("ONE", storage="file", subjects=["one"])
    for step in steps[:-1]:
        step(world, count)
        world.settle()
    world.received()

    steps[-1](world, count)
    asked = world.disk.total()
    world.publish("mine", "x", reply="_INBOX.mine")
    commit = world.engine.begin_commit()
    assert commit is not None
    commit.run()
    commit.finish()

    changes: int = world.disk.total() - asked
    acks = [each for each in world.received() if each.get("stream") == "MINE"]
    assert [1] == [each["seq"] for each in acks]
    return changes


@pytest.mark.parametrize(
    "steps",
    [
        (make_streams,),
        (make_streams, update_streams),
        (make_streams, delete_streams),
        (make_streams, make_a_consumer_of_each),
        (make_consumers,),
        (make_consumers, delete_consumers),
        (make_consumers, delete_the_stream_of_all),
    ],
    ids=lambda steps: steps[-1].__name__,
)
def test_an_ack_waits_for_no_more_changes_if_more_are_asked_for(
    tmp_path: Path, steps: tuple[Step, ...]
) -> None:
    few = changes_before_an_ack(World(tmp_path / "few", disk=CountingDisk()), steps, FEW)
    world = World(tmp_path / "many", disk=CountingDisk())

    many = changes_before_an_ack(world, steps, MANY)

    assert 0 < many <= few
    world.settle()
    assert not [each for each in world.received() if "error" in each]
    assert not world.engine.dirty


def test_the_files_of_a_deleted_stream_go_a_few_at_a_time(tmp_path: Path) -> None:
    world = World(tmp_path, disk=CountingDisk())
    world.create("ONE", storage="file")
    make_consumers(world, MANY)
    world.settle()
    ask(world, "STREAM.DELETE.ONE")
    while commit := world.engine.begin_commit():
        commit.run()
        commit.finish()
    root = Path(world.engine.files.root)
    assert ["1.deleted"] == [each.name for each in root.iterdir()]

    removals = []
    while (work := world.engine.maintain()) is not None:
        left = len(list(root.rglob("*")))
        complete(work)
        removals.append(left - len(list(root.rglob("*"))))

    assert [] == list(root.iterdir())
    assert len(removals) > 2
    assert max(removals) <= SWEPT_MAX


def test_one_consumer_does_not_wait_for_the_many_of_another_stream(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.create("ONE", storage="file")
    world.create("TWO", storage="file")
    make_consumers(world, MANY)
    make_consumer(world, "TWO", "mine")

    for _ in range(2):
        commit = world.engine.begin_commit()
        assert commit is not None
        commit.run()
        commit.finish()

    assert "mine" in [each["name"] for each in world.received()]
    assert world.engine.dirty


@pytest.mark.parametrize("before", [0, MANY])
def test_what_was_asked_of_a_deleted_stream_is_not_its_successor_s(
    tmp_path: Path, before: int
) -> None:
    """Whether all of it is in one commit, or many others are in between."""
    world = World(tmp_path)
    world.create("N", storage="file", subjects=["n"])
    make_consumer(world, "N", "first")
    world.settle()
    world.received()
    make_streams(world, before)

    make_consumer(world, "N", "second")
    ask(world, "STREAM.UPDATE.N", name="N", subjects=["n", "old"])
    ask(world, "STREAM.DELETE.N")
    ask(world, "STREAM.CREATE.N", name="N", subjects=["new"])
    world.settle()

    assert [10104, 10069] == [error(each)[0] for each in world.received() if "error" in each]
    world.restart()
    stream = world.engine.streams["N"]
    assert (("new",), {}) == (stream.config.subjects, stream.consumers)


def test_a_server_that_is_stopped_in_the_middle_removes_the_rest_at_its_start(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.create("ONE", storage="file")
    make_consumers(world, MANY)
    world.settle()
    ask(world, "STREAM.DELETE.ONE")
    commit: Any = world.engine.begin_commit()
    commit.run()
    commit.finish()
    complete(world.engine.maintain())
    world.engine.close()

    again = World(tmp_path)

    assert [] == list(Path(again.engine.files.root).iterdir())
    assert {} == again.engine.streams
