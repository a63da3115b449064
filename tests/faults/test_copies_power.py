"""Copies when the power goes: a mirror equals its origin, a source takes each message once."""

from __future__ import annotations

import random

import pytest
from tests.faults.test_jetstream_power import ROUNDS, SETTINGS, PowerCut, PoweredDisk
from tests.unit.jetstream.world import BIG, SECOND_NS, START_NS, World

from penstock.config.jetstream import JetStreamConfig
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.store.values import complete

OPERATIONS_MAX = 80
CUTS = 3
CONSUMER = {
    "durable_name": "C",
    "deliver_subject": "reached",
    "ack_policy": "flow_control",
    "flow_control": True,
    "idle_heartbeat": SECOND_NS,
    "max_ack_pending": 10,
}
"""By which a copy reads its origin in messages, as from another server."""


class Copies(World):
    """An origin, its mirror, and a stream that has it as a source, on a disk that loses power."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ns = START_NS
        self.config = JetStreamConfig(store_dir="store")
        self.remotes = {}
        self.sent = 0
        self.deleted: set[int] = set()
        self.taken: set[int] = set()
        """What was taken from the stream with a source, for certain."""
        self.disk = PoweredDisk(seed)
        self.disk.operations_left = BIG
        self._start()
        self.create("O", subjects=["O.*"], storage="file")
        self.create("MIRROR", mirror={"name": "O"}, storage="file")
        self.create("SOURCED", sources=[{"name": "O"}], storage="file")
        self.call("CONSUMER.DURABLE.CREATE.O.C", stream_name="O", config=CONSUMER)
        consumer = {"name": "C", "deliver_subject": "reached"}
        self.create("REACHED", mirror={"name": "O", "consumer": consumer}, storage="file")

    def files(self) -> StreamFiles:
        return StreamFiles(self.disk, self.config.store_dir, "$G", SETTINGS)

    def live(self) -> None:
        """Publish, commit and keep house until the power goes, and come back."""
        self.disk.operations_left = self.random.randint(1, OPERATIONS_MAX)
        steps = [self.publish_some] * 3 + [self.commit] * 6
        steps += [self.delete_one, self.keep_house, self.wait]
        try:
            while True:
                self.random.choice(steps)()
        except PowerCut:
            self.session.outbox.clear()
        self.disk = self.disk.crash()
        self.disk.__class__ = PoweredDisk
        self.disk.operations_left = BIG
        self._start()

    def publish_some(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            self.sent += 1
            self.publish(f"O.{self.sent % 3}", b"%d" % self.sent)

    def commit(self) -> None:
        commit = self.shared.begin_commit()
        if commit is not None:
            if self.random.random() < 0.5:
                self.publish_some()
            commit.run()
            commit.finish()

    def delete_one(self) -> None:
        last = self.engine.streams["O"].store.last_sequence
        if last:
            sequence = self.random.randint(1, last)
            self.deleted.add(sequence)
            self.publish("$JS.API.STREAM.MSG.DELETE.O", b'{"seq":%d}' % sequence)

    def wait(self) -> None:
        self.now_ns += SECOND_NS
        self.shared.timers.run(self.now_ns)

    def keep_house(self) -> None:
        complete(self.engine.maintain())

    def check(self) -> None:
        for _ in range(50):
            self.advance(1)
            self.settle()
        self.received()
        origin = {sequence: payload for sequence, _, payload in self.messages("O")}
        # What was deleted in the origin may have been copied before. What is there was copied, also
        # if it was deleted for a while, until the power went before that was answered.
        for mirror in ("MIRROR", "REACHED"):
            copied = {sequence: payload for sequence, _, payload in self.messages(mirror)}
            assert origin.keys() <= copied.keys(), mirror
            assert all(copied[each] == payload for each, payload in origin.items()), mirror
        sourced = [int(payload) for _, _, payload in self.messages("SOURCED")]
        assert sourced == sorted(set(sourced))
        assert not self.taken & set(sourced), "what was taken came again"
        assert {int(payload) for payload in origin.values()} <= self.taken | set(sourced)
        self.take_some()

    def take_some(self) -> None:
        """Delete some of the stream with a source, often the last: it tells how far that was."""
        found = self.messages("SOURCED")
        # The client has heard the follower ask: it listens to all inboxes.
        self.received()
        for sequence, _, payload in found[-self.random.randint(0, 3) :]:
            answer = self.call("STREAM.MSG.DELETE.SOURCED", seq=sequence)
            assert answer["success"]
            self.taken.add(int(payload))


@pytest.mark.usefixtures("each_encryption")
@pytest.mark.parametrize("fault_rate", [0.0, 0.05], ids=["a good disk", "a bad disk"])
def test_copies_are_equal_whenever_the_power_goes(fault_rate: float) -> None:
    for seed in range(ROUNDS // 10):
        world = Copies(seed)
        for _ in range(CUTS):
            world.disk.fault_rate = fault_rate
            world.live()
            world.check()
