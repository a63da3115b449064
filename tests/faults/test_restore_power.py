"""
A stream that is restored when the power goes is there whole, or not at all.

The power goes at each operation of the disk in turn, from the first one of the restore
to behind its answer; what was not synced is lost or not, as the seed has it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from tests.faults.test_jetstream_power import SETTINGS, PowerCut, PoweredDisk
from tests.unit.jetstream.snapshots.test_snapshot import chunks, restore, snapshot
from tests.unit.jetstream.world import BIG, START_NS, World

from penstock.config.jetstream import JetStreamConfig
from penstock.jetstream.files.streamfiles import StreamFiles

pytestmark = pytest.mark.usefixtures("each_encryption")

MESSAGES = 60
CONSUMERS = 18
"""More than one commit makes."""
SEEDS = 3


class Archive(NamedTuple):
    """A snapshot, and what was in the stream."""

    config: dict[str, Any]
    chunks: list[bytes]
    content: Any


class PoweredWorld(World):
    """A client of an engine whose power goes."""

    def __init__(self, disk: PoweredDisk) -> None:
        self.now_ns = START_NS
        self.disk = disk
        self.config = JetStreamConfig(store_dir="store")
        self.remotes = {}
        self._start()

    def files(self) -> StreamFiles:
        return StreamFiles(self.disk, self.config.store_dir, "$G", SETTINGS)


def content(world: World) -> Any:
    consumers = world.call("CONSUMER.LIST.S")["consumers"]
    states = [(each["name"], each["ack_floor"], each["num_ack_pending"]) for each in consumers]
    return world.messages("S"), world.state("S")["last_seq"], sorted(states, key=str)


@pytest.fixture(scope="module")
def archive() -> Archive:
    world = PoweredWorld(PoweredDisk(0))
    world.disk.operations_left = BIG
    world.create("S", subjects=["s.*"], storage="file")
    for number in range(MESSAGES):
        world.ask(f"s.{number % 3}", f"{number} " + "x" * 100)
    for sequence in (1, 2, 30, MESSAGES):
        world.call("STREAM.MSG.DELETE.S", seq=sequence)
    for number in range(CONSUMERS):
        config = {"durable_name": f"C{number}", "ack_policy": "explicit"}
        world.call(f"CONSUMER.CREATE.S.C{number}", stream_name="S", config=config)
        batch = str(number + 1)
        world.publish(f"$JS.API.CONSUMER.MSG.NEXT.S.C{number}", batch, reply="_INBOX.pull")
        world.settle()
        world.received()
    world.send(b"SUB snap 5\r\nSUB $JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.S 6\r\n")
    snapshot(world)
    return Archive(world.engine.streams["S"].config.to_json(), chunks(world), content(world))


def test_a_stream_is_restored_whole_or_not_at_all(archive: Archive) -> None:
    for seed in range(SEEDS):
        cut = 1
        while cut_at(archive, seed, cut):
            cut += 1
        assert cut > CONSUMERS


def cut_at(archive: Archive, seed: int, operation: int) -> bool:
    """Restore with the power going at an operation; tell whether it did."""
    world = PoweredWorld(PoweredDisk(1000 * seed + operation))
    world.disk.operations_left = operation
    is_restored = False
    try:
        is_restored = "error" not in restore(world, archive.chunks, **archive.config)
    except PowerCut:
        pass
    after = world.disk.crash()
    after.__class__ = PoweredDisk
    after.operations_left = BIG
    world = PoweredWorld(after)
    if "S" not in world.engine.streams:
        assert not is_restored
        assert [name for name in after.names_now if "/streams/" in name] == []
        assert "error" not in restore(world, archive.chunks, **archive.config)
    assert content(world) == archive.content
    return not is_restored
