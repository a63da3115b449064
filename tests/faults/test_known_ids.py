"""
A message that was stored is not stored again, though it is gone by now.

A round is a seed: messages with ids are stored, and removed by limits, deletes, purges and
rollups; segments are dropped and compacted; the server is stopped, killed, or loses power.
Whoever then publishes again what was acknowledged, inside the duplicate window, is told so.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.simdisk import SimDisk
from tests.unit.jetstream.world import SECOND_NS, START_NS, World

from penstock.config.jetstream import JetStreamConfig
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.store.file.log import FileSettings
from penstock.jetstream.store.values import complete

pytestmark = pytest.mark.usefixtures("each_encryption")

ROUNDS = 25
FAILING_ROUNDS = 100
WINDOW_S = 100
SETTINGS = FileSettings(
    segment_bytes_max=900,
    segment_messages_max=8,
    index_bytes_max=2000,
    tail_bytes_max=200,
    write_ahead_bytes=100,
    reserve_bytes=200,
)
STREAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "max_msgs": {"max_msgs": 3},
    "per subject": {"max_msgs_per_subject": 1},
    "rollup": {"allow_rollup_hdrs": True, "max_bytes": 600},
    "compressed": {"compression": "s2", "max_msgs": 10},
}


class History(World):
    """A publisher that remembers which ids were acknowledged, and when."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.random = random.Random(seed)
        self.now_ns = START_NS
        self.config = JetStreamConfig(store_dir="store")
        self.remotes = {}
        self.disk = SimDisk(seed)
        self.stored: dict[str, tuple[int, int]] = {}
        """Ids that were acknowledged: sequence and time."""
        self._start()
        window_ns = WINDOW_S * SECOND_NS
        self.create("S", subjects=["S.*"], storage="file", duplicate_window=window_ns, **config)

    def files(self) -> StreamFiles:
        return StreamFiles(self.disk, self.config.store_dir, "$G", SETTINGS)

    def live(self) -> None:
        steps = [self.store] * 6 + [self.maintain] * 4 + [self.delete, self.purge, self.wait]
        for _ in range(self.random.randint(1, 30)):
            self.random.choice(steps)()

    def store(self) -> None:
        number = len(self.stored)
        pairs = {"Nats_Msg_Id": f"id-{number}"}
        if self.engine.streams["S"].config.allow_rollup_hdrs and self.random.random() < 0.3:
            pairs["Nats_Rollup"] = self.random.choice(("sub", "all"))
        answer = self.ask(f"S.{number % 3}", "x" * self.random.choice((1, 100)), **pairs)
        self.stored[f"id-{number}"] = answer["seq"], self.now_ns

    def delete(self) -> None:
        found = self.messages("S")
        if found:
            body = {"seq": self.random.choice(found)[0], "no_erase": self.random.random() < 0.5}
            assert self.ask("$JS.API.STREAM.MSG.DELETE.S", json.dumps(body))["success"]

    def purge(self) -> None:
        fields = self.random.choice(({}, {"keep": 1}, {"filter": "S.1"}))
        assert self.call("STREAM.PURGE.S", **fields)["success"]

    def maintain(self) -> None:
        complete(self.engine.maintain())

    def wait(self) -> None:
        self.now_ns += self.random.randint(1, WINDOW_S // 3) * SECOND_NS
        self.shared.timers.run(self.now_ns)
        self.settle()

    def end(self) -> None:
        """Start again, after a stop, a kill or a power cut."""
        how = self.random.randrange(3)
        if how == 0:
            self.restart()
            return
        if how == 1:
            self.disk = self.disk.crash()
        self._start()

    def check(self) -> None:
        """Publish everything again."""
        for name, (sequence, time_ns) in self.stored.items():
            is_known = self.now_ns - time_ns < WINDOW_S * SECOND_NS
            if is_known:
                answer = self.ask("S.0", "again", Nats_Msg_Id=name)
                assert (answer["seq"], answer.get("duplicate")) == (sequence, True), name


@pytest.mark.parametrize("config", STREAMS.values(), ids=STREAMS)
def test_an_id_is_known_for_the_whole_window(config: dict[str, Any]) -> None:
    for seed in range(ROUNDS):
        history = History(seed, **config)
        for _ in range(3):
            history.live()
            history.end()
            if history.random.random() < 0.7:
                history.check()
        history.check()


class FailingHistory(History):
    """The same on a disk that fails now and then; an id counts once it is acknowledged."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.sent: dict[str, int] = {}
        """Ids and when they were sent."""
        super().__init__(seed, **config)

    def live(self) -> None:
        steps = [self.store] * 6 + [self.maintain] * 4 + [self.delete, self.purge, self.wait]
        for _ in range(self.random.randint(1, 40)):
            if self.random.random() < 0.2:
                self.disk.fault_rate = self.random.choice((0.0, 0.1, 0.5, 1.0))
            self.random.choice(steps)()
            self.settle()
            self.take_answers()

    def store(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            number = len(self.sent)
            self.sent[f"id-{number}"] = self.now_ns
            payload = "x" * self.random.choice((1, 100))
            reply = f"_INBOX.id-{number}"
            self.publish(f"S.{number % 3}", payload, reply=reply, Nats_Msg_Id=f"id-{number}")

    def delete(self) -> None:
        body = {"seq": self.random.randint(1, len(self.sent) + 1)}
        self.publish("$JS.API.STREAM.MSG.DELETE.S", json.dumps(body), reply="_INBOX.other")

    def purge(self) -> None:
        fields = self.random.choice(({}, {"keep": 1}, {"filter": "S.1"}))
        self.publish("$JS.API.STREAM.PURGE.S", json.dumps(fields), reply="_INBOX.other")

    def take_answers(self) -> None:
        for _, subject, *_, data in self.operations():
            name = subject.decode().removeprefix("_INBOX.")
            answer = json.loads(data)
            if name in self.sent and "error" not in answer:
                self.stored[name] = answer["seq"], self.sent[name]

    def end(self) -> None:
        """Start again on a disk that works, after a kill or a power cut."""
        if self.random.random() < 0.5:
            self.disk = self.disk.crash()
        self.disk.fault_rate = 0.0
        self._start()


@pytest.mark.parametrize("config", STREAMS.values(), ids=STREAMS)
def test_an_id_is_known_though_the_disk_failed(config: dict[str, Any]) -> None:
    for seed in range(FAILING_ROUNDS):
        history = FailingHistory(seed, **config)
        for _ in range(3):
            history.live()
            history.end()
            history.check()


def test_ids_are_let_go_of_when_the_window_is_over() -> None:
    history = History(1, max_msgs=3)
    for _ in range(60):
        history.store()
        history.maintain()
    directory = f"{history.engine.files.path('S')}/messages"
    assert [name for name in history.disk.names(directory) if name.endswith(".ids")]

    history.now_ns += 2 * WINDOW_S * SECOND_NS
    for _ in range(40):
        history.store()
        history.maintain()
    kept = [name for name in history.disk.names(directory) if name.endswith(".ids")]
    history.now_ns += 2 * WINDOW_S * SECOND_NS
    history.restart()

    assert len(kept) < 20
    assert "duplicate" not in history.ask("S.0", "again", Nats_Msg_Id="id-99")


def test_a_stream_without_ids_keeps_none() -> None:
    history = History(1, max_msgs=3)
    for _ in range(60):
        history.ask("S.0", "x" * 100)
        history.maintain()

    names = history.disk.names(f"{history.engine.files.path('S')}/messages")
    assert not [name for name in names if name.endswith(".ids")]
