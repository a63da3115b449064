"""
Every kind of file in a store, and every kind of damage to it.

Whatever is done to one file, the server finds what was there before, or tells: in its log, in the
figures of `/healthz` and `/metrics`, and by `penstock store check`. A message that checks out is
served, what is served is not counted as lost, and no sequence is given twice.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.simdisk import SimDisk
from tests.unit.jetstream.world import SECOND_NS, START_NS, World

from penstock.config.jetstream import JetStreamConfig
from penstock.jetstream.files.storecheck import check, is_store
from penstock.jetstream.files.streamcheck import check_stream
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.store.file.log import FileSettings
from penstock.jetstream.store.values import complete

pytestmark = pytest.mark.usefixtures("each_encryption")

SETTINGS = FileSettings(segment_bytes_max=1500, segment_messages_max=12, reserve_bytes=200)
WINDOW_NS = 1000 * SECOND_NS
PLACES = 8
"""The places in a file at which a bit is flipped, or the file is cut, for each kind of it."""
CONFIGS: dict[str, dict[str, Any]] = {
    "PLAIN": {},
    "LIMITED": {"max_msgs": 25},
    "LATEST": {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    "PRESSED": {"compression": "s2"},
    "COPY": {"sources": [{"name": "PLAIN"}], "subjects": [], "max_msgs": 30},
}


class Stored(World):
    """A store with a few streams, of which each segment has but a few messages."""

    def __init__(self, disk: SimDisk) -> None:
        self.now_ns = START_NS
        self.config = JetStreamConfig(store_dir="store")
        self.remotes = {}
        self.disk = disk
        self._start()

    def files(self) -> StreamFiles:
        return StreamFiles(self.disk, self.config.store_dir, "$G", SETTINGS)

    def fill(self, config: dict[str, Any], name: str) -> None:
        options = {"subjects": [f"{name}.*"], "duplicate_window": WINDOW_NS, "storage": "file"}
        self.create(name, **(options | config))
        for consumer in ("C", "D"):
            body = {"durable_name": consumer, "ack_policy": "explicit"}
            answer = self.call(
                f"CONSUMER.DURABLE.CREATE.{name}.{consumer}", stream_name=name, config=body
            )
            assert "error" not in answer, answer
        if config.get("sources"):
            return
        for number in range(1, 61):
            subject = f"{name}.{number if number % 4 else 0}"
            pairs = {"Nats_Msg_Id": f"id-{number}"} if number % 2 else {}
            assert "seq" in self.ask(subject, "x" * 40 + str(number), **pairs)
            if number % 20 == 10 and name != "LATEST":
                for sequence in range(number - 7, number - 1):
                    self.call(f"STREAM.MSG.DELETE.{name}", seq=sequence)
            self.work()
        self.consume(name)

    def work(self) -> None:
        self.advance(0.5)
        while (work := self.engine.maintain()) is not None:
            complete(work)
            self.settle()

    def consume(self, name: str) -> None:
        for batch in (5, 5):
            self.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{name}.C",
                json.dumps({"batch": batch}),
                reply="_INBOX.next",
            )
            self.settle()
            replies = [operation[2] for operation in self.operations() if operation[2]]
            for reply in replies[:4]:
                self.publish(reply.decode(), "+ACK")
            self.advance(0.5)


def make(*, is_closed: bool) -> SimDisk:
    """Return the disk of a store whose server was stopped or killed."""
    world = Stored(SimDisk())
    for name, config in CONFIGS.items():
        world.fill(config, name)
        world.fill(config, f"OTHER_{name}")
    for _ in range(20):
        world.advance(1)
        world.work()
    for name in ("COPY", "OTHER_COPY"):
        world.consume(name)
    world.work()
    if is_closed:
        world.settle()
        world.engine.close()
    return copy(world.disk)


def copy(disk: SimDisk, *streams: str) -> SimDisk:
    """Return a disk with the same bytes of some streams, or of all, all of them durable."""
    other = SimDisk()

    def is_wanted(path: str) -> bool:
        _, _, inside = path.partition("/streams/")
        return not inside or not streams or inside.split("/")[0] in streams

    other.directories = {*filter(is_wanted, disk.directories)}
    for path in filter(is_wanted, disk.names_now):
        other.add(path, bytes(disk.names_now[path].content))
    return other


Truth = dict[str, dict[str, Any]]


def truth(world: World) -> Truth:
    """Return all that a client can learn of the streams."""
    return {name: of_stream(world, name) for name in sorted(world.engine.streams)}


def of_stream(world: World, name: str) -> dict[str, Any]:
    info = world.call(f"STREAM.INFO.{name}")
    consumers = {}
    for consumer in sorted(world.engine.streams[name].consumers):
        told = world.call(f"CONSUMER.INFO.{name}.{consumer}")
        fields = ("config", "delivered", "ack_floor", "num_pending", "num_ack_pending")
        consumers[consumer] = {each: told[each] for each in fields}
        for each in ("delivered", "ack_floor"):
            consumers[consumer][each].pop("last_active", None)
    stream = world.engine.streams[name]
    window = stream.intake.checks.window(world.now_ns)
    ids = [window.find(b"id-%d" % number, world.now_ns) for number in range(1, 61)]
    sources = [each.origin.read_sequence for each in stream.origins._sources.values()]
    return {
        "config": info["config"],
        "messages": world.content(name),
        "last": info["state"]["last_seq"],
        "consumers": consumers,
        "ids": ids,
        "sources": sources,
    }


Damage = Callable[[bytearray, random.Random], None]


def flip(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def flip_early(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(min(len(content), 120))] ^= 1 << chance.randrange(8)


def flip_late(content: bytearray, chance: random.Random) -> None:
    content[-1 - chance.randrange(min(len(content), 120))] ^= 1 << chance.randrange(8)


def cut(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(1, len(content)) :]


def empty(content: bytearray, chance: random.Random) -> None:
    content.clear()


DAMAGES: dict[str, Damage | None] = {
    "flip": flip,
    "flip_early": flip_early,
    "flip_late": flip_late,
    "cut": cut,
    "empty": empty,
    "missing": None,
    "foreign": None,
}
KINDS = {
    "segment": ".seg",
    "ids": ".ids",
    "reserve": "RESERVE",
    "stream": "stream.json",
    "sources": "sources.json",
    "consumer": "consumer.json",
    "consumer log": ".log",
}


def damaged(original: SimDisk, path: str, damage: str, seed: int) -> SimDisk | None:
    """Return a disk with one damaged file; None if that changes nothing."""
    name = stream_of(path)
    disk = copy(original, name, *(["PLAIN"] if name == "COPY" else []))
    content = disk.names_now[path].content
    before = bytes(content)
    change = DAMAGES[damage]
    if change is not None:
        change(content, random.Random(f"{path} {damage} {seed}"))
    elif damage == "missing":
        disk.remove(path)
        return disk
    else:
        other = foreign(original, path)
        if other is None:
            return None
        content[:] = original.names_now[other].content
    return disk if bytes(content) != before else None


def stream_of(path: str) -> str:
    return path.split("/streams/")[1].split("/")[0]


def foreign(original: SimDisk, path: str) -> str | None:
    """Return the file of the other stream that is in the same place, or any of that kind."""
    name = stream_of(path)
    other = name.removeprefix("OTHER_") if name.startswith("OTHER_") else f"OTHER_{name}"
    twin = path.replace(f"/{name}/", f"/{other}/")
    if twin in original.names_now:
        return twin
    folder, suffix = twin.rpartition("/")[0], path.rpartition(".")[2]
    return next(
        (each for each in original.names_now if each.startswith(folder) and each.endswith(suffix)),
        None,
    )


def checked(disk: SimDisk) -> list[str]:
    """Return what `penstock store check` says of the files."""
    found = []
    for directory in sorted(disk.directories):
        if is_store(disk.names(directory)):
            found += check(disk, directory).problems
        if directory.rpartition("/")[0].endswith("/streams"):
            found += check_stream(disk, directory)
    return found


def figures(world: World) -> int:
    """Return whether `/healthz` and `/metrics` have something to tell."""
    engine = world.engine
    streams = engine.streams.values()
    told = sum(stream.store.lost + len(stream.losses.faults) for stream in streams)
    return told + len(engine.unreadable) + len(engine.unreadable_consumers())


def cases(original: SimDisk, suffix: str) -> Iterator[str]:
    for path in sorted(original.names_now):
        if path.endswith(suffix) and "OTHER_" not in path:
            yield path


@pytest.fixture(scope="module")
def originals() -> dict[Any, tuple[SimDisk, Truth]]:
    return {}


@pytest.mark.parametrize("is_closed", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_healed_or_told(
    kind: str,
    damage: str,
    is_closed: bool,
    originals: dict[Any, tuple[SimDisk, Truth]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = is_closed, SimDisk.keys is None
    if key not in originals:
        original = make(is_closed=is_closed)
        assert checked(original) == []
        originals[key] = original, truth(Stored(copy(original)))
    original, expected = originals[key]
    paths = list(cases(original, KINDS[kind]))
    assert paths
    times = PLACES // len(paths) + 1 if DAMAGES[damage] not in (None, empty) else 1
    for path in paths:
        for seed in range(times):
            disk = damaged(original, path, damage, seed)
            if disk is not None:
                caplog.clear()
                case = f"{path} {damage} {seed}"
                name = stream_of(path)
                examine(disk, {name: expected[name]}, caplog, case, is_flip="flip" in damage)


def examine(
    disk: SimDisk, expected: Truth, caplog: pytest.LogCaptureFixture, case: str, *, is_flip: bool
) -> None:
    problems = checked(copy(disk))
    world = Stored(disk)
    found = {name: each for name, each in truth(world).items() if name in expected}
    logged = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert "Traceback" not in caplog.text, case
    if found != expected:
        differ = [name for name in expected if found.get(name) != expected[name]]
        parts = [
            (n, [p for p in expected[n] if found[n][p] != expected[n][p]])
            for n in differ
            if n in found
        ]
        assert logged, (case, differ, parts)
        assert figures(world), (case, differ, parts, logged)
        assert problems, (case, differ, parts, logged)
    for name in found:
        stream = world.engine.streams[name]
        before = {each[0]: each for each in expected[name]["messages"]}
        after = {each[0]: each for each in found[name]["messages"]}
        gone = before.keys() - after.keys()
        assert all(before[each] == after[each] for each in before.keys() & after.keys()), case
        if not gone:
            assert stream.store.lost == 0, (case, logged)
        if is_flip and not stream.config.max_msgs > 0:
            assert len(gone) <= stream.store.lost, (case, logged)
        assert found[name]["last"] >= expected[name]["last"], (case, logged)
