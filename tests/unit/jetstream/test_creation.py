"""Streams are made, changed and removed in the journal's thread, and answered when that is safe."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import FailingDisk, World, error

from penstock.jetstream.disk import RealDisk

CHANGES = ("make_directory", "add_directory", "create", "remove_directory", "sync_directory")


class CountingDisk(FailingDisk):
    """The real file system, that counts what it is asked to change, by kind and place."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, str]] = Counter()

    def total(self) -> int:
        return sum(self.seen.values())


def _counted(name: str) -> Any:
    def call(self: CountingDisk, path: str) -> Any:
        self.seen[name, path] += 1
        original = getattr(FailingDisk if name == "create" else RealDisk, name)
        return original(self, path)

    return call


for _name in CHANGES:
    setattr(CountingDisk, _name, _counted(_name))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, disk=CountingDisk())


def ask(world: World, call: str, **fields: Any) -> None:
    """Make an API call, and do not wait for its answer."""
    world.publish(f"$JS.API.{call}", json.dumps(fields) if fields else "", reply="_INBOX.x")


def test_the_loop_changes_no_file_for_a_new_stream_or_an_update(world: World) -> None:
    world.create("OLD", storage="file", subjects=["old"])
    before = world.disk.total()

    ask(world, "STREAM.CREATE.S", name="S", subjects=["s"])
    ask(world, "STREAM.UPDATE.OLD", name="OLD", subjects=["old", "older"])
    ask(world, "STREAM.DELETE.OLD")

    assert world.disk.total() == before
    assert world.received() == []
    world.settle()
    assert len(world.received()) == 3
    assert list(world.engine.streams) == ["S"]


def test_streams_that_are_made_together_share_the_sync_of_their_names(world: World) -> None:
    for number in range(50):
        ask(world, f"STREAM.CREATE.S{number}", name=f"S{number}", subjects=[f"s{number}"])

    world.settle()

    assert len(world.engine.streams) == 50
    assert world.disk.seen["sync_directory", world.engine.files.root] == 1


def test_consumers_that_are_made_together_share_the_sync_of_their_names(world: World) -> None:
    world.create("S", storage="file")
    for number in range(50):
        config = {"name": f"c{number}", "durable_name": f"c{number}"}
        ask(world, f"CONSUMER.CREATE.S.c{number}", stream_name="S", config=config)

    world.settle()

    place = world.engine.files.consumers_path("S")
    assert len(world.engine.streams["S"].consumers) == 50
    # One for the consumers, one for the first file of their log.
    assert world.disk.seen["sync_directory", place] <= 2


def test_who_asks_for_a_stream_that_is_being_made_waits_for_it(world: World) -> None:
    ask(world, "STREAM.CREATE.S", name="S", subjects=["s"])
    ask(world, "STREAM.INFO.S")
    ask(world, "CONSUMER.CREATE.S.c", stream_name="S", config={"name": "c", "durable_name": "c"})
    ask(world, "STREAM.CREATE.S", name="S", subjects=["s"])
    ask(world, "STREAM.CREATE.S", name="S", subjects=["other"])
    ask(world, "STREAM.DELETE.S")
    assert world.received() == []

    world.settle()

    kinds = [each["type"].rpartition(".")[2] for each in world.received()]
    assert sorted(kinds) == [
        "consumer_create_response",
        *["stream_create_response"] * 3,
        "stream_delete_response",
        "stream_info_response",
    ]
    assert world.engine.streams == {}
    world.restart()
    assert world.engine.streams == {}


def test_what_a_stream_that_is_being_made_will_store_is_taken(world: World) -> None:
    ask(world, "STREAM.CREATE.S", name="S", subjects=["s.>"])
    ask(world, "STREAM.CREATE.T", name="T", subjects=["s.x"], storage="memory")

    assert error(world.received()[0])[1] == "subjects overlap with an existing stream"


def test_a_stream_that_can_not_be_made_is_none_and_leaves_nothing(world: World) -> None:
    world.disk.is_broken = True
    ask(world, "STREAM.CREATE.S", name="S", subjects=["s"])
    ask(world, "STREAM.INFO.S")
    world.settle()

    refused, unknown = world.received()

    assert (error(refused)[0], error(unknown)[1]) == (10049, "stream not found")
    assert world.engine.creating == {}
    assert not Path(world.engine.files.path("S")).exists()
    world.disk.is_broken = False
    world.create("S", storage="file", subjects=["s"])


def test_an_update_that_can_not_be_kept_is_taken_back(world: World) -> None:
    world.create("S", storage="file", subjects=["s"])
    world.disk.is_broken = True

    answer = world.call("STREAM.UPDATE.S", name="S", subjects=["s", "t"])

    assert error(answer)[0] == 10069
    assert world.engine.streams["S"].config.subjects == ("s",)
    world.disk.is_broken = False
    world.create("T", subjects=["t"])


def test_a_stream_can_be_made_again_right_after_it_was_deleted(world: World) -> None:
    world.create("S", storage="file", subjects=["s"])
    world.ask("s", "x")

    ask(world, "STREAM.DELETE.S")
    ask(world, "STREAM.CREATE.S", name="S", subjects=["s"])
    world.settle()
    world.received()

    assert world.state("S")["messages"] == 0
    assert world.ask("s", "y")["seq"] == 1
    world.restart()
    assert world.messages("S") == [(1, "s", b"y")]


def test_with_a_sync_interval_files_are_made_before_the_answer_too(tmp_path: Path) -> None:
    world = World(tmp_path, sync=60.0)
    ask(world, "STREAM.CREATE.S", name="S", subjects=["s"])

    works, prompt = world.engine.write_unsynced()

    assert (works, world.received()) == ([], [])
    assert prompt is not None
    prompt.run()
    assert (Path(world.engine.files.path("S")) / "stream.json").exists()
    prompt.finish()
    assert world.received()[0]["did_create"] is True
