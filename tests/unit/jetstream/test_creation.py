"""Streams are made, changed and removed in the journal's thread, and answered when that is safe."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import FailingDisk, World, error

from penstock.jetstream.commit import CHANGES_MAX
from penstock.jetstream.store.file.disk import RealDisk

CHANGES = (
    "make_directory",
    "add_directory",
    "create",
    "remove",
    "remove_directory",
    "sync_directory",
)


class CountingDisk(FailingDisk):
    """The real file system, that counts what it is asked to change, by kind and place."""

    def __init__(self) -> None:
        super().__init__()
        # Several threads add to it, which only a list takes.
        self.calls: list[tuple[str, str]] = []

    @property
    def seen(self) -> Counter[tuple[str, str]]:
        return Counter(self.calls)

    def total(self) -> int:
        return len(self.calls)


def _counted(name: str) -> Any:
    def call(self: CountingDisk, path: str) -> Any:
        self.calls.append((name, path))
        original = getattr(FailingDisk if name == "create" else RealDisk, name)
        return original(self, path)

    return call


for _name in CHANGES:
    setattr(CountingDisk, _name, _counted(_name))


def opcodes(action: Callable[[], None]) -> int:
    """Return how much Python has to do for something."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def test_a_new_stream_asks_nothing_of_those_that_are_there(tmp_path: Path) -> None:
    def cost(others: int) -> int:
        world = World(tmp_path / str(others))
        for number in range(others):
            world.create(f"S{number}", subjects=[f"s{number}"])
        world.create("FIRST", subjects=["first"])
        return opcodes(lambda: world.create("MINE", subjects=["mine"]))

    assert cost(500) < cost(5) * 1.1


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
    for number in range(CHANGES_MAX):
        ask(world, f"STREAM.CREATE.S{number}", name=f"S{number}", subjects=[f"s{number}"])

    world.settle()

    assert len(world.engine.streams) == CHANGES_MAX
    assert world.disk.seen["sync_directory", world.engine.files.root] == 1


def test_consumers_that_are_made_together_share_the_sync_of_their_names(world: World) -> None:
    world.create("S", storage="file")
    for number in range(CHANGES_MAX):
        config = {"name": f"c{number}", "durable_name": f"c{number}"}
        ask(world, f"CONSUMER.CREATE.S.c{number}", stream_name="S", config=config)

    world.settle()

    place = world.engine.files.consumers_path("S")
    assert len(world.engine.streams["S"].consumers) == CHANGES_MAX
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
    world = World(tmp_path, sync_interval=60.0)
    ask(world, "STREAM.CREATE.S", name="S", subjects=["s"])

    works, prompt = world.shared.write_unsynced()

    assert (works, world.received()) == ([], [])
    assert prompt is not None
    prompt.run()
    assert (Path(world.engine.files.path("S")) / "stream.json").exists()
    prompt.finish()
    assert world.received()[0]["did_create"] is True


def test_the_loop_changes_no_file_for_the_first_message_that_expires(world: World) -> None:
    world.create("S", storage="file", allow_msg_ttl=True)
    world.ask("S", "x")
    before = world.disk.total()

    world.publish("S", "y", reply="_INBOX.x", Nats_TTL="5s")
    world.settle()

    assert world.disk.total() == before
    assert [2] == [each["seq"] for each in world.received()]


def test_the_loop_syncs_nothing_for_the_first_consumer_of_a_stream(world: World) -> None:
    """Whoever made the stream: an older server left the directory to the first consumer."""
    world.create("S", storage="file")
    world.settle()
    world.engine.close()
    (world.directory / "jetstream" / "$G" / "streams" / "S" / "consumers").rmdir()
    again = World(world.directory, disk=CountingDisk())
    again.disk.calls.clear()

    config = {"durable_name": "c", "ack_policy": "explicit"}
    ask(again, "CONSUMER.CREATE.S.c", stream_name="S", config=config)

    assert [] == [path for kind, path in again.disk.seen if kind == "sync_directory"]


def sourcing(world: World) -> None:
    """Make a stream `N` that has read three messages of `O`, and wants to keep that."""
    world.create("O", storage="file", subjects=["o"])
    world.create("N", storage="file", sources=[{"name": "O"}])
    for _ in range(3):
        world.publish("o", "x")
    world.settle()
    for _ in range(5):
        world.advance(0)


def test_the_loop_changes_no_file_to_keep_how_far_sources_were_read(world: World) -> None:
    sourcing(world)
    world.now_ns += 6_000_000_000
    world.publish("o", "x")
    on_loop = commits = 0
    while commit := world.shared.begin_commit():
        commit.run()
        before = world.disk.total()
        commit.finish()
        on_loop += world.disk.total() - before
        world.shared.timers.run(world.now_ns)
        commits += 1

    saved = world.engine.files.read_sources("N")
    assert saved is not None
    assert ([4], 0) == ([sequence for sequence, _ in saved["positions"].values()], on_loop)


def test_what_a_deleted_stream_wanted_to_keep_is_not_its_successor_s(world: World) -> None:
    sourcing(world)
    world.now_ns += 6_000_000_000
    world.publish("o", "x")
    for _ in range(2):
        world.advance(0)
    stream = world.engine.streams["N"]
    stream.origins._save(stream.visible_sequence)

    ask(world, "STREAM.DELETE.N")
    ask(world, "STREAM.CREATE.N", name="N", storage="file", subjects=["n"])
    world.settle()

    assert "N" in world.engine.streams
    assert world.engine.files.read_sources("N") is None
