"""
The whole engine on a disk that loses power, thousands of times in seconds.

A round is a seed: a client publishes, pulls, acks and deletes; commits begin and
end as the server makes them, work arriving in between; and at some operation of
the disk, whichever that is, the power goes. What was acknowledged before must
be there when the engine is opened again. `POWER_ROUNDS` says how often.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable

import pytest
from tests.faults.witness import Witness
from tests.simdisk import SimDisk
from tests.unit.jetstream.world import BIG, START_NS, World

from penstock.client.jetstream.puback import PubAck
from penstock.config.jetstream import JetStreamConfig
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.store.file.compression import MAGIC
from penstock.jetstream.store.file.log import FileSettings
from penstock.jetstream.store.file.segmentfile import SUFFIX
from penstock.jetstream.store.values import complete
from penstock.protocol import subjects

pytestmark = pytest.mark.usefixtures("each_encryption")

ROUNDS = int(os.environ.get("POWER_ROUNDS", "400"))
CUTS = 3
"""How often the power goes in one round."""
OPERATIONS_MAX = 50
"""Of the disk, between two cuts."""
SETTINGS = FileSettings(
    segment_bytes_max=2000,
    segment_messages_max=20,
    index_bytes_max=2000,
    tail_bytes_max=500,
    write_ahead_bytes=100,
)
ACK_WAIT_S = 5
LIMIT = 5
"""Messages that the limited stream may hold."""


class PowerCut(BaseException):
    """The moment at which everything stops."""


class PoweredDisk(SimDisk):
    """A disk that stops everything at its n-th operation."""

    operations_left = OPERATIONS_MAX

    def trouble(self, action: str) -> OSError | None:
        self.operations_left -= 1
        if self.operations_left <= 0:
            raise PowerCut(action)
        return super().trouble(action)


class History(World):
    """One client of an engine that loses power now and then."""

    operations_max = OPERATIONS_MAX

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ns = START_NS
        self.config = JetStreamConfig(store_dir="store")
        self.remotes = {}
        self.witness = Witness("S", self.random)
        self.power_on(PoweredDisk(seed))
        self.make_streams()

    def make_streams(self) -> None:
        compression = self.random.choice(("none", "s2"))
        self.create("S", subjects=["S.*"], storage="file", compression=compression)
        self.create("LIMITED", subjects=["L"], storage="file", max_msgs=LIMIT)
        self.create("ROLLED", subjects=["R.*"], storage="file", allow_rollup_hdrs=True)
        config = {"durable_name": "C", "ack_policy": "explicit", "ack_wait": ACK_WAIT_S * 10**9}
        answer = self.call("CONSUMER.CREATE.S.C", stream_name="S", config=config)
        assert "error" not in answer

    def power_on(self, disk: PoweredDisk) -> None:
        self.disk = disk
        self.unanswered: dict[bytes, bytes] = {}
        """Payloads by the subject their PubAck comes to."""
        self.pulled: list[tuple[int, str]] = []
        self._start()

    def files(self) -> StreamFiles:
        return StreamFiles(self.disk, self.config.store_dir, "$G", SETTINGS)

    def live(self) -> None:
        """Do random things until the power goes, and come back."""
        self.disk.operations_left = self.random.randint(1, self.operations_max)
        steps = self.steps()
        try:
            while True:
                self.random.choice(steps)()
                self.take_answers()
        except PowerCut:
            # What the session was already given may have left by now, or may not.
            self.session.outbox.clear()
        after = self.disk.crash()
        after.__class__ = PoweredDisk
        self.power_on(after)
        self.check()

    def steps(self) -> list[Callable[[], None]]:
        """Return what is done, the usual things more than once."""
        steps = [self.publish_some] * 5 + [self.commit] * 5 + [self.pull, self.ack_some] * 3
        steps += [self.keep_house] * 3
        return [*steps, self.delete_one, self.wait, self.push_out, self.roll_up]

    def publish_some(self) -> None:
        for _ in range(self.random.randint(1, 8)):
            payload = self.witness.payload()
            number = self.witness.sent[payload]
            self.unanswered[b"_INBOX.publish.%d" % number] = payload
            self.publish(f"S.{number % 3}", payload, reply=f"_INBOX.publish.{number}")

    def push_out(self) -> None:
        """Store more than a stream may hold."""
        for _ in range(self.random.randint(1, 2 * LIMIT)):
            self.publish("L", "x" * 40)

    def roll_up(self) -> None:
        """Store some messages, and one that replaces them or all of its subject."""
        for _ in range(self.random.randint(1, 8)):
            self.publish(f"R.{self.random.randint(1, 3)}", "x" * 40)
        kind = self.random.choice(("all", "sub"))
        subject = self.random.choice(("R.1", "R.2", "R.3", "R.*"))
        self.publish(subject, kind, Nats_Rollup=kind)

    def commit(self) -> None:
        """Commit as the server does: more may arrive while the disk is busy."""
        commit = self.shared.begin_commit()
        if commit is None:
            return
        if self.random.random() < 0.5:
            self.publish_some()
        commit.run()
        commit.finish()

    def pull(self) -> None:
        request = json.dumps({"batch": self.random.randint(1, 10), "no_wait": True})
        self.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", request, reply="_INBOX.pull")

    def ack_some(self) -> None:
        self.random.shuffle(self.pulled)
        count = self.random.randint(0, len(self.pulled))
        acked, self.pulled = self.pulled[:count], self.pulled[count:]
        for sequence, reply in acked:
            self.publish(reply, "+ACK", reply=f"_INBOX.ack.{sequence}")

    def delete_one(self) -> None:
        candidates = sorted(self.witness.stored.keys() - self.witness.removing)
        if candidates:
            sequence = self.random.choice(candidates)
            self.witness.removing.add(sequence)
            body = json.dumps({"seq": sequence, "no_erase": self.random.random() < 0.5})
            self.publish("$JS.API.STREAM.MSG.DELETE.S", body, reply=f"_INBOX.delete.{sequence}")

    def keep_house(self) -> None:
        complete(self.engine.maintain())

    def wait(self) -> None:
        self.now_ns += self.random.randint(1, 2 * ACK_WAIT_S) * 10**9
        self.shared.timers.run(self.now_ns)

    def take_answers(self) -> None:
        """Note what the client was told."""
        for operation in self.operations():
            subject, reply, payload = operation[1], operation[3], operation[5]
            published = self.unanswered.pop(subject, None)
            kind, _, number = subject.removeprefix(b"_INBOX.").partition(b".")
            if reply:
                sequence = int(reply.split(b".")[5])
                self.witness.on_delivered(sequence, payload)
                self.pulled.append((sequence, reply.decode()))
            elif b'"error"' in payload:
                assert self.disk.fault_rate, payload
            elif published is not None:
                self.witness.on_stored(published, PubAck(payload))
            elif kind == b"ack":
                self.witness.settled.add(int(number))
            elif kind == b"delete":
                self.witness.removed.add(int(number))

    def segments(self) -> Counter[bytes]:
        """Return how many files of messages there are, by what they begin with."""
        files = [name for name in self.disk.names_now if name.endswith(SUFFIX)]
        return Counter(self.disk.open(name).read(0, 8) for name in files)

    def check(self) -> None:
        """See that all that was promised is there."""
        self.witness.check_messages((each[0], each[2]) for each in self.messages("S"))
        assert len(self.messages("LIMITED")) <= LIMIT
        self.check_rollups()
        info = self.call("CONSUMER.INFO.S.C")
        self.witness.check_ack_floor(info["ack_floor"]["stream_seq"])

    def check_rollups(self) -> None:
        """See that no message is left below one that replaced it."""
        messages = self.messages("ROLLED")
        for index, (_, subject, payload) in enumerate(messages):
            assert payload != b"all" or index == 0
            if payload == b"sub":
                pattern = subject.encode()
                before = [each[1].encode() for each in messages[:index]]
                assert not any(subjects.matches(pattern, each) for each in before)


class CompressedHistory(History):
    """The same where segments are compressed and compacted most of the time."""

    operations_max = 6 * OPERATIONS_MAX

    def make_streams(self) -> None:
        super().make_streams()
        self.call("STREAM.UPDATE.S", name="S", subjects=["S.*"], storage="file", compression="s2")

    def steps(self) -> list[Callable[[], None]]:
        return super().steps() + [self.keep_house] * 8 + [self.delete_one] * 4


@pytest.mark.parametrize("fault_rate", [0.0, 0.1], ids=["a good disk", "a bad disk"])
@pytest.mark.parametrize("first_seed", range(0, ROUNDS, 100))
def test_a_power_cut_takes_nothing_that_was_acknowledged(
    first_seed: int, fault_rate: float
) -> None:
    for seed in range(first_seed, min(first_seed + 100, ROUNDS)):
        go_through(History(seed), fault_rate)


@pytest.mark.parametrize("fault_rate", [0.0, 0.01], ids=["a good disk", "a bad disk"])
def test_a_power_cut_takes_nothing_of_compressed_segments(fault_rate: float) -> None:
    segments: Counter[bytes] = Counter()
    for seed in range(max(ROUNDS // 10, 1)):
        segments += go_through(CompressedHistory(seed), fault_rate)
    assert segments[MAGIC] > segments.total() // 20, "few segments were compressed"


def go_through(history: History, fault_rate: float) -> Counter[bytes]:
    """Live through some power cuts; return the segments that were there after them."""
    segments: Counter[bytes] = Counter()
    for _ in range(CUTS):
        history.disk.fault_rate = fault_rate
        history.live()
        segments += history.segments()
    history.disk.operations_left = BIG
    history.publish_some()
    history.settle()
    history.take_answers()
    history.check()
    assert not history.unanswered
    return segments
