"""An ack waits for a few changes of files at most, however many others have asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.test_creation import CountingDisk, ask
from tests.unit.jetstream.world import FailingDisk, FailingFile, World, error

from penstock.core.account import Account
from penstock.jetstream import commit as commits
from penstock.jetstream import engine, housekeeping
from penstock.jetstream.commit import CHANGES_MAX, Change, Durable, in_turns
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.config.stream import StreamConfig
from penstock.jetstream.consumers import consumers
from penstock.jetstream.files.rubbish import SWEPT_MAX
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.store.file.disk import RealDisk
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
    commit = world.shared.begin_commit()
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
    assert not world.shared.dirty


def test_the_files_of_a_deleted_stream_go_a_few_at_a_time(tmp_path: Path) -> None:
    world = World(tmp_path, disk=CountingDisk())
    world.create("ONE", storage="file")
    make_consumers(world, MANY)
    world.settle()
    ask(world, "STREAM.DELETE.ONE")
    while commit := world.shared.begin_commit():
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
        commit = world.shared.begin_commit()
        assert commit is not None
        commit.run()
        commit.finish()

    assert "mine" in [each["name"] for each in world.received()]
    assert world.shared.dirty


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
    commit: Any = world.shared.begin_commit()
    commit.run()
    commit.finish()
    complete(world.engine.maintain())
    world.engine.close()

    again = World(tmp_path)

    assert [] == list(Path(again.engine.files.root).iterdir())
    assert {} == again.engine.streams


def test_a_commit_covers_so_many_streams_and_the_next_one_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    make_streams(world, 10)
    world.settle()
    world.received()
    monkeypatch.setattr(commits, "ITEMS_MAX", 4)
    for number in range(10):
        world.publish(f"s{number}", "x", reply="_INBOX.ack")

    acked = []
    while commit := world.shared.begin_commit():
        commit.run()
        commit.finish()
        acked.append(len(world.received()))

    assert [4, 4, 2] == acked


def test_what_waits_for_its_turn_keeps_no_message_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.create("MINE", storage="file", subjects=["mine"])
    monkeypatch.setattr(commits, "ITEMS_MAX", CHANGES_MAX + 1)
    make_streams(world, MANY)
    world.publish("mine", "x", reply="_INBOX.mine")

    commit: Any = world.shared.begin_commit()
    commit.run()
    commit.finish()

    assert {"stream": "MINE", "seq": 1} in world.received()


def changes(count: int) -> list[Change]:
    return [Change(lambda: None, lambda _: None) for _ in range(count)]


def test_accounts_have_turns_and_each_keeps_its_order() -> None:
    ours, theirs = changes(5), changes(2)
    owners: dict[Durable, str] = dict.fromkeys(ours, "A") | dict.fromkeys(theirs, "B")

    first, second = in_turns(owners, 0), in_turns(owners, 1)

    assert first == [ours[0], theirs[0], ours[1], theirs[1], *ours[2:]]
    assert second == [theirs[0], ours[0], theirs[1], *ours[1:]]
    assert in_turns(dict.fromkeys(ours, "A"), 7) == ours


def neighbour(world: World) -> engine.JetStreamEngine:
    """Return the engine of another account, which shares the commits of the world's."""
    first = world.engine
    beside = engine.JetStreamEngine(
        Account("B", route_cache_size=100, random=first.account.random),
        world.shared,
        files=StreamFiles(world.disk, world.config.store_dir, "B"),
    )
    beside.open()
    return beside


def test_one_stream_of_one_account_does_not_wait_for_the_many_of_another(tmp_path: Path) -> None:
    world = World(tmp_path)
    beside = neighbour(world)
    make_streams(world, MANY)
    made: list[str] = []
    config = StreamConfig.from_json({"name": "MINE", "subjects": ["mine"], "storage": "file"})
    beside.create_stream(config, lambda stream, _: made.append(stream.name if stream else ""))

    commit = world.shared.begin_commit()
    assert commit is not None
    commit.run()
    commit.finish()

    assert made == ["MINE"]
    assert len(world.received()) == CHANGES_MAX - 1


def test_one_consumer_of_one_account_does_not_wait_for_the_many_of_another(tmp_path: Path) -> None:
    world = World(tmp_path)
    beside = neighbour(world)
    world.create("ONE", storage="file")
    made: list[Any] = []
    config = StreamConfig.from_json({"name": "MINE", "subjects": ["mine"], "storage": "file"})
    beside.create_stream(config, lambda stream, _: made.append(stream))
    world.settle()
    make_consumers(world, MANY)
    wanted = ConsumerConfig.from_json({"name": "mine", "durable_name": "mine"})
    consumers.create(made[0], wanted, action="", pedantic=False, answer=made.append)

    commit = world.shared.begin_commit()
    assert commit is not None
    commit.run()
    commit.finish()

    assert made[1]["name"] == "mine"


def test_the_syncs_of_several_streams_wait_together(tmp_path: Path) -> None:
    """Each sync ends only once another one has begun: one after the other, none would."""
    barrier = threading.Barrier(2, timeout=30)

    class MeetingFile(FailingFile):
        def sync(self) -> None:
            if "/messages/" in self.path:
                barrier.wait()
            super().sync()

    class MeetingDisk(FailingDisk):
        def create(self, path: str) -> Any:
            file = MeetingFile(self, RealDisk.create(self, path))
            file.path = path
            return file

    world = World(tmp_path, disk=MeetingDisk())
    for name in ("ONE", "TWO"):
        world.create(name, storage="file", subjects=[name.lower()])
    world.publish("one", "x", reply="_INBOX.one")
    world.publish("two", "x", reply="_INBOX.two")

    commit = world.shared.begin_commit()
    assert commit is not None
    commit.run()
    commit.finish()

    assert {"ONE", "TWO"} == {each["stream"] for each in world.received()}


def test_housekeeping_asks_some_streams_at_a_time_and_all_of_them_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    asked: list[str] = []
    for number in range(10):
        world.create(f"S{number}", subjects=[f"s{number}"])
        store = world.engine.streams[f"S{number}"].store
        monkeypatch.setattr(store, "maintain", lambda number=number: asked.append(number))
    monkeypatch.setattr(housekeeping, "ASKED_MAX", 4)

    for _ in range(5):
        assert world.engine.maintain() is None

    assert [*range(10), *range(10)] == asked
