"""Whatever goes wrong with one item of a commit is that item's failure, and nobody else's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import FailingDisk, World

from penstock.jetstream.commit import SyncThreads, Together
from penstock.jetstream.timers import Timers

OPERATIONS = ("create", "rename", "sync_directory", "make_directory", "write", "sync")
UNFORESEEN = (ValueError, RuntimeError, OverflowError, KeyError, OSError)


class PoisonedDisk(FailingDisk):
    """The real file system, of which one operation on one stream fails as nobody foresaw."""

    def __init__(self, operation: str, error: type[Exception], place: str) -> None:
        super().__init__()
        self.poison: tuple[str, type[Exception], str] | None = None
        self._poison = (operation, error, place)

    def poison_it(self) -> None:
        self.poison = self._poison

    def meet(self, operation: str, path: str) -> None:
        if self.poison is not None:
            poisoned, error, place = self.poison
            if operation == poisoned and f"{place}" in path:
                raise error("poison")

    def make_directory(self, path: str) -> None:
        self.meet("make_directory", path)
        super().make_directory(path)

    def create(self, path: str) -> Any:
        self.meet("create", path)
        return PoisonedFile(self, path, super().create(path))

    def open(self, path: str) -> Any:
        return PoisonedFile(self, path, super().open(path))

    def rename(self, path: str, new_path: str) -> None:
        self.meet("rename", path)
        super().rename(path, new_path)

    def sync_directory(self, path: str) -> None:
        self.meet("sync_directory", path)
        super().sync_directory(path)


class PoisonedFile:
    """A file of a poisoned disk."""

    def __init__(self, disk: PoisonedDisk, path: str, file: Any) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes, offset: int) -> None:
        self._disk.meet("write", self._path)
        self._file.write(data, offset)

    def sync(self) -> None:
        self._disk.meet("sync", self._path)
        self._file.sync()


def new_world(tmp_path: Path, operation: str, error: type[Exception], place: str) -> World:
    disk = PoisonedDisk(operation, error, place)
    world = World(tmp_path, disk=disk)
    for name in ("GOOD", "BAD"):
        world.create(name, storage="file", subjects=[f"{name}.>"])
        world.call(
            f"CONSUMER.CREATE.{name}.c",
            stream_name=name,
            config={"name": "c", "durable_name": "c", "ack_policy": "explicit"},
        )
    disk.poison_it()
    return world


def answers(world: World, *requests: tuple[str, str]) -> dict[str, Any]:
    """Send requests that become durable together; return who was answered what."""
    for number, (subject, payload) in enumerate(requests):
        world.publish(subject, payload, reply=f"_INBOX.r{number}")
    world.settle()
    return {str(number): answer for number, answer in enumerate(world.received())}


@pytest.mark.parametrize("error", UNFORESEEN)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_stream_that_fails_is_the_only_one(
    operation: str, error: type[Exception], tmp_path: Path
) -> None:
    world = new_world(tmp_path, operation, error, "/BAD/messages")

    told = answers(world, ("BAD.1", "x"), ("GOOD.1", "x"))

    # One answer each, whichever comes first, and the good one is good. Where nothing can be
    # synced, not even that it was not stored, the other one is told when that is known.
    assert {"stream": "GOOD", "seq": 1} in told.values()
    world.disk.poison = None
    world.advance(2)
    assert len(told) + len(world.received()) == 2
    world.advance(2)
    assert world.ask("BAD.2", "y")["seq"] > 0
    assert world.engine.failures() == {}


@pytest.mark.parametrize("error", UNFORESEEN)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_consumer_that_can_not_be_kept_is_refused_alone(
    operation: str, error: type[Exception], tmp_path: Path
) -> None:
    world = new_world(tmp_path, operation, error, "/BAD/consumers")
    options = '{"stream_name":"%s","config":{"name":"n","durable_name":"n"}}'

    told = answers(
        world,
        ("$JS.API.CONSUMER.CREATE.BAD.n", options % "BAD"),
        ("$JS.API.CONSUMER.CREATE.GOOD.n", options % "GOOD"),
        ("GOOD.1", "x"),
    )

    assert len(told) == 3
    assert {"stream": "GOOD", "seq": 1} in told.values()
    created = [each["stream_name"] for each in told.values() if "stream_name" in each]
    assert "GOOD" in created
    world.disk.poison = None
    world.advance(2)
    assert world.engine.consumer_failures() == {}
    again = world.ask("$JS.API.CONSUMER.CREATE.BAD.m", options.replace('"n"', '"m"') % "BAD")
    assert again["name"] == "m"


class Item:
    """Something in a commit that fails at one step."""

    is_prompt = False

    def __init__(self, step: str = "") -> None:
        self.step = step
        self.seen: list[str] = []

    def meet(self, step: str) -> None:
        self.seen.append(step)
        if step == self.step:
            raise RuntimeError(step)

    def begin_commit(self) -> Any:
        self.meet("begin")
        return self

    def run(self) -> None:
        self.meet("run")

    def finish(self, error: Exception | None = None) -> None:
        self.error = error
        self.meet("finish")

    def end_commit(self) -> None:
        self.meet("end")

    def fail_commit(self, reason: str) -> None:
        self.meet("fail")


@pytest.mark.parametrize(
    ("step", "seen"),
    [
        ("begin", ["begin", "fail"]),
        ("run", ["begin", "run", "finish", "end"]),
        ("finish", ["begin", "run", "finish", "fail"]),
        ("end", ["begin", "run", "finish", "end", "fail"]),
    ],
)
def test_an_item_that_fails_at_any_step_is_told_so_and_the_others_end(
    step: str, seen: list[str], tmp_path: Path
) -> None:
    world, bad, good = World(tmp_path), Item(step), Item()
    for item in (bad, good):
        world.engine.context.touch(item)

    world.settle()

    assert (bad.seen, good.seen) == (seen, ["begin", "run", "finish", "end"])
    assert good.error is None


def test_an_item_that_fails_before_a_later_sync_is_told_so_too(tmp_path: Path) -> None:
    world, bad, good = World(tmp_path, sync_interval=60.0), Item("begin"), Item()
    for item in (bad, good):
        world.engine.context.touch(item)

    works = world.shared.write_unsynced()

    assert (bad.seen, good.seen, works) == (["begin", "fail"], ["begin", "end"], ([good], None))


def test_a_thread_that_ended_halfway_has_made_nothing_durable() -> None:
    first, second = Item(), Item()
    together = Together([first, None, second], SyncThreads())

    together.finish()

    assert isinstance(first.error, OSError)
    assert isinstance(second.error, OSError)


def test_a_timer_that_fails_costs_no_other_its_turn(caplog: pytest.LogCaptureFixture) -> None:
    timers, done = Timers(), list[int]()
    timers.at(1, done.append)
    timers.at(2, lambda now_ns: done[99])
    timers.at(3, done.append)

    timers.run(5)

    assert done == [5, 5]
    assert timers.next_deadline_ns() is None
    [record] = caplog.records
    assert "IndexError" in record.getMessage()


@pytest.mark.parametrize("due", ["age", "time to live", "redelivery", "schedule"])
def test_what_is_due_and_fails_is_tried_again(
    due: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store of one stream fails once as nobody foresaw; what was due happens later."""
    caplog.set_level(logging.CRITICAL)
    world = World(tmp_path)
    options: dict[str, Any] = {
        "age": {"max_age": 1_000_000_000, "duplicate_window": 500_000_000},
        "time to live": {"allow_msg_ttl": True},
        "redelivery": {},
        "schedule": {"allow_msg_schedules": True},
    }[due]
    world.create("S", subjects=["s.>"], **options)
    happened = EFFECTS[due](world)
    store = world.engine.streams["S"].store
    broken = {"age": "enforce", "time to live": "remove", "redelivery": "get", "schedule": "get"}

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("poison")

    name = broken[due]
    monkeypatch.setattr(store, name, fail)
    world.advance(3)
    monkeypatch.undo()

    world.advance(3)
    world.advance(3)

    assert happened()
    assert world.ask("s.after", "x")["seq"] > 0


def _aged(world: World) -> Callable[[], bool]:
    world.ask("s.1", "x")
    return lambda: all(subject != "s.1" for _, subject, _ in world.messages("S"))


def _lived(world: World) -> Callable[[], bool]:
    world.ask("s.1", "x", Nats_TTL="1s")
    return lambda: all(subject != "s.1" for _, subject, _ in world.messages("S"))


def _redelivered(world: World) -> Callable[[], bool]:
    world.ask("s.1", "x")
    options = {"name": "c", "durable_name": "c", "ack_policy": "explicit", "ack_wait": 10**9}
    world.call("CONSUMER.CREATE.S.c", stream_name="S", config=options)
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", '{"batch":2}', reply="_INBOX.n")
    world.settle()
    world.received()
    return lambda: bool(world.received())


def _scheduled(world: World) -> Callable[[], bool]:
    header = {"Nats_Schedule": "@every 1s", "Nats_Schedule_Target": "s.made"}
    world.ask("s.1", "x", **header)
    return lambda: any(subject == "s.made" for _, subject, _ in world.messages("S"))


EFFECTS = {
    "age": _aged,
    "time to live": _lived,
    "redelivery": _redelivered,
    "schedule": _scheduled,
}
