"""
What was answered with an error never happens, and what was shown stays.

A round is a seed: a client publishes, deletes, purges and reads while the disk fails or is
full now and then, is well again, and the server is killed or loses power. Every answer is
held against what is there later: what was acknowledged is, what was refused never is, and
nobody was shown a message that is another one, or none, when the disk is well.
"""

from __future__ import annotations

import json
import os
import random
from base64 import b64decode
from typing import Any

import pytest
from tests.simdisk import SimDisk
from tests.unit.jetstream.world import SECOND_NS, START_NS, World

from penstock.config.jetstream import JetStreamConfig
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.store.file.log import FileSettings
from penstock.jetstream.store.values import complete
from penstock.protocol import headers

pytestmark = pytest.mark.usefixtures("each_encryption")

NO_REASON = 10051
"""The error of a request that failed in a way nobody had thought of."""
SEEDS = int(os.environ.get("REFUSED_SEEDS", "40"))
SETTINGS = FileSettings(
    segment_bytes_max=1500,
    segment_messages_max=15,
    index_bytes_max=2000,
    tail_bytes_max=300,
    write_ahead_bytes=100,
    reserve_bytes=400,
)
STREAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "max_msgs": {"max_msgs": 6},
    "bucket": {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    "work queue": {"retention": "workqueue"},
}


class History(World):
    """One client, and what it was told."""

    def __init__(self, seed: int, **config: Any) -> None:
        self.random = random.Random(seed)
        self.now_ns = START_NS
        self.config = JetStreamConfig(store_dir="store")
        self.remotes = {}
        self.disk = SimDisk(seed)
        self.unreadable = 0.0
        """How much cannot be read of what is read at the end of a commit."""
        self.was_unreadable = False
        self.is_plain = not config
        self.asked: dict[bytes, tuple[str, Any]] = {}
        """What waits for an answer, by the subject that it comes to."""
        self.count = 0
        self.stored: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        """Payloads that were answered with an error."""
        self.shown: dict[int, bytes] = {}
        self.last_shown = 0
        self.removing: set[int] = set()
        """What may be gone: somebody asked for it."""
        self.removed: set[int] = set()
        """What must be gone."""
        self.removals = 0
        """How often it was asked for."""
        self._start()
        self.create("S", subjects=["S.*"], storage="file", allow_direct=True, **config)
        consumer = {"durable_name": "C", "ack_policy": "explicit"}
        self.call("CONSUMER.CREATE.S.C", stream_name="S", config=consumer)

    def files(self) -> StreamFiles:
        return StreamFiles(self.disk, self.config.store_dir, "$G", SETTINGS)

    def live(self, trouble: str) -> None:
        steps = [self.store] * 6 + [self.commit] * 6 + [self.read] * 3
        steps += [self.compare, self.delete, self.purge, self.pull, self.wait, self.keep_house]
        for _ in range(self.random.randint(1, 40)):
            if self.random.random() < 0.2:
                self.spoil(trouble)
            self.random.choice(steps)()
            self.take_answers()

    def spoil(self, trouble: str) -> None:
        """Make the disk worse, or better."""
        if trouble == "full":
            used = self.disk.used_bytes
            self.disk.capacity_bytes = self.random.choice((None, used, used + 200, used + 1500))
        else:
            self.disk.fault_rate = self.random.choice((0.0, 0.1, 0.5, 1.0))
        if trouble == "unreadable":
            self.unreadable = self.random.choice((0.0, 0.1, 0.5, 1.0))
            self.was_unreadable = True

    def mend(self) -> None:
        self.disk.fault_rate = self.unreadable = 0.0
        self.disk.capacity_bytes = None

    def send_off(self, kind: str, about: Any, subject: str, payload: bytes, **pairs: str) -> None:
        self.count += 1
        reply = f"_INBOX.{self.count}"
        self.asked[reply.encode()] = kind, about
        self.publish(subject, payload, reply=reply, **pairs)

    def store(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            payload = b"%d " % self.count + self.random.randbytes(self.random.choice((1, 100)))
            pairs = {"Nats_Msg_Id": str(self.count)} if self.random.random() < 0.3 else {}
            is_bucket = self.engine.streams["S"].config.allow_rollup_hdrs
            if is_bucket and self.random.random() < 0.2:
                pairs["Nats_Rollup"] = "sub"
            self.send_off("store", payload, f"S.{self.random.randint(1, 4)}", payload, **pairs)

    def compare(self) -> None:
        payload = b"%d compared" % self.count
        expected = str(self.random.choice((0, self.last_shown)))
        pairs = {"Nats_Expected_Last_Sequence": expected}
        self.send_off("store", payload, "S.1", payload, **pairs)

    def delete(self) -> None:
        sequence = self.random.choice([1, *self.stored])
        body = json.dumps({"seq": sequence, "no_erase": self.random.random() < 0.5}).encode()
        there = self.stored.keys() & {sequence} - self.removing
        self.send_off("delete", (sequence, self.begin(there)), "$JS.API.STREAM.MSG.DELETE.S", body)
        self.removing.add(sequence)

    def purge(self) -> None:
        fields: dict[str, Any] = self.random.choice(({}, {"keep": 2}, {"filter": "S.1"}))
        there = self.begin(self.stored.keys() - self.removing)
        self.send_off("purge", there, "$JS.API.STREAM.PURGE.S", json.dumps(fields).encode())
        self.removing |= self.stored.keys()
        self.removing |= set(range(1, self.engine.streams["S"].store.last_sequence + 1))

    def begin(self, there: set[int]) -> tuple[set[int], int]:
        """Begin to remove something; if that is refused and nothing else was asked, it stays."""
        others = [kind for kind, _ in self.asked.values() if kind in ("delete", "purge")]
        self.removals += 1
        return (set() if others else there), self.removals

    def kept(self, there: set[int], removals: int) -> None:
        """Note that something was not removed."""
        if removals == self.removals:
            self.removing -= there

    def read(self) -> None:
        sequence = self.random.randint(1, self.engine.streams["S"].store.last_sequence + 1)
        by_subject = json.dumps({"last_by_subj": f"S.{self.random.randint(1, 4)}"}).encode()
        body = self.random.choice((json.dumps({"seq": sequence}).encode(), by_subject))
        kind = self.random.randrange(4)
        if kind == 0:
            self.send_off("get", None, "$JS.API.STREAM.MSG.GET.S", body)
        elif kind == 1:
            self.send_off("direct", None, "$JS.API.DIRECT.GET.S", body)
        elif kind == 2:
            self.send_off("direct", None, f"$JS.API.DIRECT.GET.S.S.{sequence % 4 + 1}", b"")
        else:
            self.send_off("info", None, "$JS.API.STREAM.INFO.S", b"")

    def pull(self) -> None:
        request = json.dumps({"batch": self.random.randint(1, 5), "no_wait": True})
        self.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", request, reply="_INBOX.pull")

    def commit(self) -> None:
        """Commit as the server does: more may arrive while the disk is busy."""
        commit = self.shared.begin_commit()
        if commit is not None:
            if self.random.random() < 0.5:
                self.random.choice((self.store, self.read, self.delete))()
            commit.run()
            self.disk.read_fault_rate = self.unreadable
            commit.finish()
            self.disk.read_fault_rate = 0.0

    def wait(self) -> None:
        self.now_ns += self.random.randint(1, 3) * SECOND_NS
        self.shared.timers.run(self.now_ns)

    def keep_house(self) -> None:
        complete(self.engine.maintain())

    # Answers.

    def take_answers(self) -> None:
        while self.session.put_off:
            # On a busy machine a turn may end in the middle of a read.
            self.session.go_on()
        for _, subject, _, reply, header_bytes, data in self.operations():
            if reply:
                self.on_delivered(reply, data[header_bytes:])
            elif subject in self.asked:
                self.on_answer(*self.asked.pop(subject), data[:header_bytes], data)

    def on_delivered(self, reply: bytes, payload: bytes) -> None:
        sequence = int(reply.split(b".")[5])
        self.see(sequence, payload)
        if self.random.random() < 0.5:
            self.removing.add(sequence)
            self.publish(reply.decode(), "+ACK")

    def on_answer(self, kind: str, about: Any, header: bytes, data: bytes) -> None:
        if kind == "direct":
            sequence = headers.get(header, b"Nats-Sequence")
            if sequence:
                self.see(int(sequence), data[len(header) :])
            return
        document = json.loads(data)
        failed = "error" in document
        assert not failed or document["error"]["err_code"] != NO_REASON, document
        if kind == "store":
            self.on_stored(about, document)
        elif kind == "get" and not failed:
            message = document["message"]
            self.see(message["seq"], b64decode(message.get("data", "")))
        elif kind == "info" and not failed:
            self.last_shown = max(self.last_shown, document["state"]["last_seq"])
        elif kind == "delete":
            self.on_deleted(*about, document)
        elif kind == "purge" and failed:
            self.kept(*about)

    def on_stored(self, payload: bytes, document: Any) -> None:
        if "error" in document:
            self.refused.add(payload)
            found = document["error"]["description"].partition("wrong last sequence: ")[2]
            self.last_shown = max(self.last_shown, int(found or 0))
        else:
            assert not document.get("duplicate")
            assert self.stored.setdefault(document["seq"], payload) == payload
            self.last_shown = max(self.last_shown, document["seq"])

    def on_deleted(self, sequence: int, about: tuple[set[int], int], document: Any) -> None:
        if "error" not in document:
            self.removed.add(sequence)
        else:
            self.kept(*about)

    def see(self, sequence: int, payload: bytes) -> None:
        """Note what was shown: from now on it is that message, or none."""
        assert self.shown.setdefault(sequence, payload) == payload
        self.last_shown = max(self.last_shown, sequence)

    # Ends.

    def heal(self) -> None:
        """Let the disk be well for a while: then everybody was told."""
        self.mend()
        for _ in range(6):
            self.settle()
            self.now_ns += 2 * SECOND_NS
            self.shared.timers.run(self.now_ns)
            self.take_answers()
        self.settle()
        self.take_answers()
        assert self.engine.failures() == {}
        # What is stored tells whether something was removed: nobody knows while it is unreadable.
        kinds = {kind for kind, _ in self.asked.values()}
        assert kinds <= ({"purge", "delete"} if self.was_unreadable else set())
        self.asked.clear()

    def end(self) -> None:
        """Kill the server, or cut its power."""
        self.take_answers()
        self.asked.clear()
        self.mend()
        if self.random.random() < 0.5:
            self.disk = self.disk.crash()
        self._start()

    def check(self) -> None:
        found = {sequence: payload for sequence, _, payload in self.messages("S")}
        assert not self.refused & set(found.values()), "what was refused is there"
        assert not self.removed & found.keys(), "what was removed is there"
        assert self.engine.streams["S"].store.last_sequence >= self.last_shown
        for sequence, payload in found.items():
            assert self.stored.get(sequence, payload) == payload
            assert self.shown.get(sequence, payload) == payload
        if self.is_plain:
            missing = self.stored.keys() - found.keys() - self.removing
            assert not missing, "what was acknowledged is not there"
            assert not self.shown.keys() - found.keys() - self.removing, "what was shown is gone"


@pytest.mark.parametrize("config", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("trouble", ["bad", "full", "unreadable"])
def test_what_was_refused_never_happens(trouble: str, config: dict[str, Any]) -> None:
    for seed in range(SEEDS):
        history = History(seed, **config)
        for _ in range(4):
            history.live(trouble)
            if history.random.random() < 0.6:
                history.heal()
                history.check()
            else:
                history.end()
                history.check()
        history.heal()
        history.check()
