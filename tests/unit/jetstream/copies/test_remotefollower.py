"""Origins that only messages reach: what is asked of them, and what becomes of every mishap."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import World

from penstock.jetstream.copies.remote import AccountRemote, Receive, RemoteWatcher
from penstock.jetstream.copies.sourcing import delivered
from penstock.protocol import headers

API = "$JS.hub.API"
ORIGIN = {"name": "O", "external": {"api": API, "deliver": ""}}


class Network:
    """The way to another engine: it can be down, lose messages, or lead to an older server."""

    def __init__(self, world: World) -> None:
        self.api = "$JS.API"
        self.level_max = 9
        self.is_deaf = False
        """Whether nothing is answered."""
        self.answers: tuple[bytes, bytes] | None = None
        """What everything is answered with, header and payload, if not by the engine."""
        self.asked: list[str] = []
        """Which calls were made."""
        self.flow_control: list[bytes] = []
        """Headers of the answers to flow control."""
        self.loses: Callable[[bytes], bool] = lambda payload: False
        self._world = world
        self._account = AccountRemote(world.engine.context, self.api)
        self._watchers: list[RemoteWatcher] = []
        self._receivers: dict[str, Receive] = {}
        self._ends: list[Callable[[], None]] = []

    def attach(self, watcher: RemoteWatcher) -> None:
        self._watchers.append(watcher)
        self._account.attach(watcher)

    def detach(self, watcher: RemoteWatcher) -> None:
        self._watchers.remove(watcher)
        self._account.detach(watcher)

    def fail(self, reason: str) -> None:
        for end in self._ends:
            end()
        for watcher in self._watchers:
            watcher.on_lost(reason)

    def recover(self) -> None:
        for watcher in self._watchers:
            watcher.on_connected()

    def refuse(self, reason: str) -> None:
        for watcher in self._watchers:
            watcher.on_refused(reason)

    def new_inbox(self) -> str:
        return self._account.new_inbox()

    def subscribe(self, subject: str, receive: Receive) -> Callable[[], None]:
        self._receivers[subject] = receive
        end = self._account.subscribe(
            subject, lambda arrived: receive([a for a in arrived if not self.loses(a[3])])
        )
        self._ends.append(end)
        return end

    def publish(
        self, subject: bytes, payload: bytes = b"", *, reply: bytes = b"", header: bytes = b""
    ) -> None:
        if subject.startswith(b"$JS.FC."):
            self.flow_control.append(header)
        else:
            self.asked.append(subject.decode().removeprefix("$JS.API."))
        level = int(headers.get(header, b"Nats-Required-Api-Level") or 0)
        answers = self.answers
        if level > self.level_max:
            error = {"code": 412, "err_code": 10185, "description": "too new"}
            answers = (b"", json.dumps({"error": error}).encode())
        if answers is not None:
            self._receivers[reply.decode()]([(reply, b"", *answers)])
        elif not self.is_deaf:
            self._account.publish(subject, payload, reply=reply, header=header)


class Two:
    """An engine with the origin, one with the copy, and the network between them."""

    def __init__(self, directory: Path) -> None:
        self.there = World(directory / "there")
        self.here = World(directory / "here")
        self.network = Network(self.there)
        self.here.remotes[API] = self.network

    def work(self, seconds: float = 0) -> None:
        """Let time pass on both sides until nothing more happens."""
        for world in (self.there, self.here):
            world.advance(seconds)
        for _ in range(12):
            for world in (self.there, self.here):
                world.advance(0)
        # The clients have heard the consumers ask and send: they listen to all inboxes.
        self.there.received()
        self.here.received()

    def fill(self, count: int) -> None:
        for _ in range(count):
            number = self.there.engine.streams["O"].store.last_sequence + 1
            self.there.publish("o", str(number))
        self.there.settle()
        self.work()

    def told(self, name: str = "M") -> dict[str, Any]:
        info = self.here.call(f"STREAM.INFO.{name}")
        told: dict[str, Any] = info["mirror"] if "mirror" in info else info["sources"][0]
        return told

    def consumers(self) -> list[str]:
        return list(self.there.engine.streams["O"].consumers)


@pytest.fixture
def two(tmp_path: Path) -> Two:
    made = Two(tmp_path)
    made.there.create("O", subjects=["o"])
    return made


def sequences(world: World, name: str = "M") -> list[int]:
    return [sequence for sequence, *_ in world.messages(name)]


def test_a_mirror_has_what_comes(two: Two) -> None:
    two.fill(3)
    two.here.create("M", mirror=ORIGIN)
    two.work()
    two.fill(2)

    assert two.there.messages("O") == two.here.messages("M")
    assert {"lag": 0, "active": 0}.items() <= two.told().items()


def test_it_lets_go_of_its_consumer(two: Two) -> None:
    two.here.create("M", mirror=ORIGIN)
    two.work()
    assert 1 == len(two.consumers())
    two.here.call("STREAM.DELETE.M")
    two.work()
    assert [] == two.consumers()

    two.here.create("M", mirror=ORIGIN)
    two.work()
    two.here.engine.streams["M"].close()
    two.work()
    assert [] == two.consumers()


def test_a_consumer_that_keeps_the_place_goes_with_the_stream(two: Two) -> None:
    two.there.create("Q", subjects=["q"], retention="interest")
    two.here.create("M", sources=[ORIGIN | {"name": "Q"}], storage="file")
    two.work()
    kept = two.there.engine.streams["Q"].consumers
    two.here.engine.streams["M"].origins.close()
    two.work()
    assert 1 == len(kept)

    two.here.restart()
    two.work()
    two.network.is_deaf = True
    two.network.refuse("remote `hub`: not permitted")
    two.network.fail("down")
    two.network.recover()
    two.network.is_deaf = False
    # There is none at the moment that sends to us, but one that is ours.
    two.here.call("STREAM.DELETE.M")
    two.work()
    assert {} == kept


def test_an_origin_that_falls_silent_is_asked_again(two: Two) -> None:
    two.here.create("M", mirror=ORIGIN)
    two.fill(2)
    two.there.call(f"CONSUMER.DELETE.O.{two.consumers()[0]}")
    two.fill(2)
    for _ in range(9):
        two.work(1)
    assert "error" not in two.told()
    two.work(1)
    assert "the origin is silent" == two.told()["error"]["description"]
    two.work(1)

    assert [1, 2, 3, 4] == sequences(two.here)
    assert "error" not in two.told()


@pytest.mark.parametrize("kind", ["mirror", "source"])
def test_messages_that_are_lost_on_the_way_come_again(two: Two, kind: str) -> None:
    options = {"mirror": ORIGIN} if kind == "mirror" else {"sources": [ORIGIN]}
    two.here.create("M", **options)
    two.work()
    two.network.loses = lambda payload: payload == b"3"
    two.fill(5)
    assert "messages are missing behind sequence 2" == two.told()["error"]["description"]
    two.network.loses = lambda payload: False
    two.work(1)

    assert [b"1", b"2", b"3", b"4", b"5"] == [each[2] for each in two.here.messages("M")]


def test_a_heartbeat_tells_of_the_last_message_that_is_lost(two: Two) -> None:
    two.here.create("M", mirror=ORIGIN)
    two.work()
    two.network.loses = lambda payload: payload == b"2"
    two.fill(2)
    assert [1] == sequences(two.here)
    two.network.loses = lambda payload: False
    two.work(1)
    two.work(1)

    assert [1, 2] == sequences(two.here)


def test_flow_control_is_answered_once_everything_is_safe(two: Two) -> None:
    two.here.create("M", mirror=ORIGIN, storage="file")
    two.work()
    payload = b"x" * 1_000_000
    for _ in range(3):
        two.there.publish("o", payload)
    two.there.settle()
    two.there.advance(0)
    for world in (two.here, two.there) * 3:
        # No commit here: nothing is safe.
        world.shared.timers.run(world.now_ns)
    assert [] == two.network.flow_control

    two.work()
    sent = two.network.flow_control
    assert sent
    assert b"2" == headers.get(sent[0], b"Nats-Last-Stream")
    assert [1, 2, 3] == sequences(two.here)


def test_an_answer_to_flow_control_that_is_lost_is_given_again(two: Two) -> None:
    two.here.create("M", mirror=ORIGIN)
    two.work()
    two.network.is_deaf = True
    for _ in range(4):
        two.there.publish("o", b"x" * 900_000)
    two.there.settle()
    two.work()
    assert [1, 2, 3] == sequences(two.here)

    two.network.is_deaf = False
    two.work(1)
    assert [1, 2, 3, 4] == sequences(two.here)


def test_failures_are_tried_again_after_ever_longer_waits(two: Two) -> None:
    two.here.create("M", mirror=ORIGIN | {"name": "missing"})
    two.work()
    assert 10059 == two.told()["error"]["err_code"]
    attempts = []
    for _ in range(32):
        two.work(1)
        attempts.append(len(two.network.asked))

    assert [2, 2, 3, 3, 3, 3, 4] == attempts[:7]
    assert 6 == attempts[-1]


def test_a_lost_connection_is_told_and_gone_on_with(two: Two) -> None:
    two.here.create("M", mirror=ORIGIN)
    two.fill(2)
    two.network.fail("remote `hub`: down")
    assert "remote `hub`: down" == two.told()["error"]["description"]
    two.fill(2)
    assert [1, 2] == sequences(two.here)
    two.network.recover()
    two.work()

    assert [1, 2, 3, 4] == sequences(two.here)
    assert "error" not in two.told()


def test_what_is_not_permitted_is_told(two: Two) -> None:
    two.here.create("M", mirror=ORIGIN)
    two.fill(1)
    two.network.refuse("remote `hub`: not permitted")
    assert "remote `hub`: not permitted" == two.told()["error"]["description"]


@pytest.mark.parametrize("level", [4, 0])
def test_an_older_server_is_asked_for_less(two: Two, level: int) -> None:
    two.network.level_max = level
    two.here.create("M", sources=[ORIGIN])
    two.fill(3)

    assert 3 == two.here.state("M")["messages"]
    names = {each.split(".")[3].split("-")[0].rpartition("_")[0] for each in two.network.asked[:1]}
    assert {"JS_SRC"} == names
    assert [5, 4, 0].index(level) + 1 == len(two.network.asked)


def test_what_can_not_be_stored_is_waited_for(two: Two) -> None:
    two.here.create("M", sources=[ORIGIN], max_msgs=2, discard="new")
    two.fill(3)
    assert "maximum messages exceeded" in two.told()["error"]["description"]
    two.here.call("STREAM.PURGE.M")
    two.work(40)

    assert [b"3"] == [each[2] for each in two.here.messages("M")]


def test_a_source_goes_on_after_a_restart(two: Two) -> None:
    two.here.create("M", sources=[ORIGIN], storage="file")
    two.fill(3)
    two.here.restart()
    two.fill(2)

    assert [b"1", b"2", b"3", b"4", b"5"] == [each[2] for each in two.here.messages("M")]


def test_a_durable_consumer_must_ack_by_flow_control(two: Two) -> None:
    config = {"durable_name": "C", "deliver_subject": "d", "ack_policy": "explicit"}
    two.there.call("CONSUMER.DURABLE.CREATE.O.C", stream_name="O", config=config)
    two.here.create("M", mirror=ORIGIN | {"consumer": {"name": "C", "deliver_subject": "d"}})
    two.work()

    assert 10214 == two.told()["error"]["err_code"]


def test_an_origin_here_is_read_by_a_consumer_too(two: Two) -> None:
    two.fill(3)
    copy_by_consumer(two)
    two.work()

    assert two.there.messages("O") == two.there.messages("M")


def test_a_consumer_that_forgot_acks_does_not_hold_up_its_copy(two: Two) -> None:
    """A power cut takes acks that the consumer could not keep, and the copy has the messages."""
    copy_by_consumer(two, max_ack_pending=2)
    two.fill(6)
    assert two.there.call("CONSUMER.RESET.O.C", seq=1)["reset_seq"] == 1
    for _ in range(20):
        two.work(1)
    two.fill(2)
    for _ in range(20):
        two.work(1)

    assert two.there.messages("O") == two.there.messages("M")


def copy_by_consumer(two: Two, max_ack_pending: int = 10) -> None:
    """Let a mirror read its origin here through a durable consumer."""
    config = {
        "durable_name": "C",
        "deliver_subject": "d",
        "ack_policy": "flow_control",
        "flow_control": True,
        "idle_heartbeat": 1_000_000_000,
        "max_ack_pending": max_ack_pending,
    }
    two.there.call("CONSUMER.DURABLE.CREATE.O.C", stream_name="O", config=config)
    consumer = {"name": "C", "deliver_subject": "d"}
    two.there.create("M", mirror={"name": "O", "consumer": consumer})


@pytest.mark.parametrize(
    "subject",
    [
        b"$JS.ACK.O.C.1.22.33.44.55",
        b"$JS.ACK.hub.hash.O.C.1.22.33.44.55",
        b"$JS.ACK._.hash.O.C.1.22.33.44.55.token",
    ],
)
def test_every_form_of_an_ack_subject_is_read(subject: bytes) -> None:
    assert (1, 22, 33, 44, 55) == delivered(subject)


@pytest.mark.parametrize("subject", [b"", b"$JS.FC.O.C.x", b"a.b.c.d.e.f.g.h.i"])
def test_other_subjects_are_none(subject: bytes) -> None:
    with pytest.raises(ValueError, match="no ack subject"):
        delivered(subject)


def test_what_is_sent_before_the_answer_counts(two: Two) -> None:
    """Somebody listens to every inbox there, so the consumer sends before we know of it."""
    two.there.create("Q", subjects=["q"], retention="interest")
    two.here.create("M", sources=[ORIGIN | {"name": "Q"}], storage="file")
    two.work()
    for numbers in (range(1, 4), range(4, 7), range(7, 10)):
        two.here.restart()
        for number in numbers:
            two.there.publish("q", str(number))
        two.there.settle()
        for _ in range(3):
            two.work(1)

    assert [b"%d" % n for n in range(1, 10)] == [each[2] for each in two.here.messages("M")]
    assert [] == two.there.messages("Q")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"filter_subject": "p.b"}, ["2"]),
        ({"opt_start_seq": 2}, ["2", "3"]),
        ({"opt_start_time": "2120-01-01T00:00:00Z"}, []),
        (
            {"subject_transforms": [{"src": "p.a", "dest": "x"}, {"src": "p.c", "dest": "y"}]},
            ["1", "3"],
        ),
    ],
    ids=str,
)
def test_an_origin_is_asked_for_what_is_wanted(
    two: Two, options: dict[str, Any], expected: list[str]
) -> None:
    two.there.create("P", subjects=["p.*"])
    for number, letter in enumerate("abc", 1):
        two.there.publish(f"p.{letter}", str(number))
    two.there.settle()
    two.here.create("M", mirror=ORIGIN | {"name": "P"} | options)
    two.work()

    assert expected == [each[2].decode() for each in two.here.messages("M")]


def test_a_mirror_of_an_emptied_origin_has_its_sequences(two: Two) -> None:
    two.fill(3)
    two.there.call("STREAM.PURGE.O")
    two.here.create("M", mirror=ORIGIN)
    two.work()

    state = two.here.state("M")
    assert (0, 4, 3) == (state["messages"], state["first_seq"], state["last_seq"])


def test_a_source_that_was_made_anew_is_read_from_its_start(two: Two) -> None:
    two.here.create("M", sources=[ORIGIN])
    two.fill(2)
    two.network.fail("down")
    two.there.call("STREAM.DELETE.O")
    two.there.now_ns += 1
    two.there.create("O", subjects=["o"])
    two.network.recover()
    two.fill(1)

    assert [b"1", b"2", b"1"] == [each[2] for each in two.here.messages("M")]


def test_a_durable_consumer_tells_too_that_its_stream_was_made_anew(two: Two) -> None:
    config = {
        "durable_name": "C",
        "deliver_subject": "d",
        "ack_policy": "flow_control",
        "flow_control": True,
        "idle_heartbeat": 1_000_000_000,
        "max_ack_pending": 10,
    }
    two.there.call("CONSUMER.DURABLE.CREATE.O.C", stream_name="O", config=config)
    two.here.create("M", sources=[ORIGIN | {"consumer": {"name": "C", "deliver_subject": "d"}}])
    two.fill(2)
    two.network.fail("down")
    two.there.call("STREAM.DELETE.O")
    two.there.now_ns += 1
    two.there.create("O", subjects=["o"])
    two.there.call("CONSUMER.DURABLE.CREATE.O.C", stream_name="O", config=config)
    two.network.recover()
    two.fill(1)

    assert [b"1", b"2", b"1"] == [each[2] for each in two.here.messages("M")]


@pytest.mark.parametrize(
    ("header", "payload", "problem"),
    [
        (b"NATS/1.0 503\r\n\r\n", b"", "is JetStream on there?"),
        (b"", b"nonsense", "makes no sense"),
        (b"", b"{}", "makes no sense"),
        (b"", b'{"error":{"code":400,"err_code":7,"description":"no"}}', "no"),
    ],
)
def test_an_answer_that_does_not_help_is_told(
    two: Two, header: bytes, payload: bytes, problem: str
) -> None:
    two.network.answers = (header, payload)
    two.here.create("M", mirror=ORIGIN)
    two.work()
    assert problem in two.told()["error"]["description"]

    two.network.answers = None
    two.work(1)
    assert "error" not in two.told()


def test_what_is_not_permitted_while_asking_is_tried_again(two: Two) -> None:
    two.network.is_deaf = True
    two.here.create("M", mirror=ORIGIN)
    two.work()
    two.network.refuse("remote `hub`: not permitted")
    assert "remote `hub`: not permitted" == two.told()["error"]["description"]
    two.network.is_deaf = False
    two.work(1)

    assert "error" not in two.told()


def test_an_origin_that_does_not_answer_is_asked_again(two: Two) -> None:
    two.network.is_deaf = True
    two.here.create("M", mirror=ORIGIN)
    two.work()
    two.work(10)
    assert "no answer on `$JS.API`" == two.told()["error"]["description"]
    two.network.is_deaf = False
    two.work(1)

    assert "error" not in two.told()
