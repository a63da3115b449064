"""
A stream that ends before the position of a consumer: what is published next is delivered.

The end of a stream can be lost though its consumers are not: a file is cut off, the power goes in
the middle of a `sync_interval`, or a consumer was made for what comes behind a message that was
never durable. If its sequence were given again, the consumer would not be given the message.
"""

from __future__ import annotations

import random

import pytest
from tests.faults.test_jetstream_power import OPERATIONS_MAX, PowerCut, PoweredDisk
from tests.simdisk import SimDisk
from tests.unit.jetstream.consuming import ack, consume, create, payloads, publish, request
from tests.unit.jetstream.world import BIG, START_NS, World

from penstock.config.jetstream import JetStreamConfig
from penstock.jetstream.store.file.reserve import NAME as RESERVE
from penstock.jetstream.store.file.segmentfile import SUFFIX

SEEDS = 300


class Cut(World):
    """An engine on a simulated disk."""

    def __init__(self, disk: SimDisk) -> None:
        self.now_ns = START_NS
        self.disk = disk
        self.config = JetStreamConfig(store_dir="store")
        self.remotes = {}
        self._start()


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_what_comes_after_a_cut_is_delivered(
    retention: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = Cut(SimDisk())
    world.create("S", storage="file", retention=retention)
    consume(world, "S", "C")
    publish(world, "S", *map(str, range(20)))
    for message in request(world, "S", "C", batch=20):
        ack(world, message, reply="_INBOX.acked")
    path = next(name for name in world.disk.names_now if name.endswith(SUFFIX))
    del world.disk.names_now[path].content[200:]
    # Without it, only the consumer knows.
    world.disk.remove(path.rpartition("/")[0] + "/" + RESERVE)
    world.disk.locks.clear()

    after = Cut(world.disk)
    publish(after, "S", "a", "b")

    assert [b"a", b"b"] == payloads(request(after, "S", "C", batch=2))
    assert 22 == after.state("S")["last_seq"]
    assert "goes on behind" in caplog.text
    again = Cut(after.disk.crash())
    assert 22 == again.state("S")["last_seq"]


def test_a_consumer_of_new_messages_gets_them_whenever_the_power_goes() -> None:
    behind = 0
    for seed in range(SEEDS):
        chance = random.Random(seed)
        disk = PoweredDisk(seed)
        disk.operations_left = BIG
        world = Cut(disk)
        world.create("S", storage="file")
        disk.operations_left = chance.randint(1, OPERATIONS_MAX)
        try:
            for number in range(BIG):
                for _ in range(chance.randint(0, 3)):
                    world.publish("S", "early")
                create(world, "S", f"C{number}", durable_name=f"C{number}", deliver_policy="new")
        except PowerCut:
            pass
        after = Cut(disk.crash())
        stream = after.engine.streams["S"]
        behind += len(stream.consumers)
        publish(after, "S", "a", "b")
        for name in list(stream.consumers):
            got = payloads(request(after, "S", name, batch=BIG, no_wait=True))
            assert [b"a", b"b"] == [each for each in got if each in (b"a", b"b")], (seed, name)
    assert behind > SEEDS, "few consumers were left"
