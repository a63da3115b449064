"""Streams over time: limits, age, retention, updates, and what a failing disk does to them."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import SECOND_NS, World, error

from penstock.hot.wire import Op
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.store.values import Work


class Witness:
    """A consumer that wants what it is told to, and writes down what it hears."""

    hears_acks = True
    config = ConsumerConfig()

    def __init__(self, world: World, stream: str, name: str = "W") -> None:
        self.name = name
        self.wanted = b"S"
        self.settled: set[int] = set()
        self.heard: list[Any] = []
        self.stream = world.engine.streams[stream]
        self.stream.consumers[name] = self
        self.stream.consumers_changed()

    def on_messages(self) -> None:
        self.heard.append(self.stream.visible_sequence)

    def on_purged(self, pattern: bytes, left: int) -> None:
        self.heard.append("purged")

    def on_acks(self, publishes: list[Op], skip: int) -> None:
        self.heard.append([publish[1][skip:] for publish in publishes])

    def on_flow_control(self, publish: Op) -> None:
        self.heard.append(publish[1])

    def on_next(self, publish: Op, publisher: Any) -> None:
        self.heard.append(publish[2])

    def wants(self, subject: bytes) -> bool:
        return subject == self.wanted

    def needs(self, sequence: int, subject: bytes) -> bool:
        return self.wants(subject) and sequence not in self.settled

    def settle(self, *sequences: int) -> None:
        self.settled.update(sequences)
        self.stream.on_acked(self, sequences)

    def close(self) -> None:
        self.heard.append("closed")

    def delete(self) -> None:
        self.heard.append("deleted")

    def begin_commit(self) -> Work | None:
        return None

    def end_commit(self) -> None:
        pass


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def sequences(world: World, name: str = "S") -> list[int]:
    return [sequence for sequence, *_ in world.messages(name)]


def test_the_oldest_make_room_for_the_newest(world: World) -> None:
    world.create("S", max_msgs=2)
    for payload in "abc":
        world.ask("S", payload)

    assert [2, 3] == sequences(world)


def test_each_subject_has_its_own_limit(world: World) -> None:
    world.create("S", subjects=["s.*"], max_msgs_per_subject=1)
    for subject in ("s.a", "s.b", "s.a"):
        world.ask(subject, "x")

    assert [2, 3] == sequences(world)


def test_messages_go_when_they_are_too_old(world: World) -> None:
    world.create("S", max_age=SECOND_NS)
    world.ask("S", "old")
    world.advance(0.6)
    world.ask("S", "new")

    world.advance(0.5)
    assert [2] == sequences(world)
    world.advance(0.6)
    assert [] == sequences(world)
    assert None is world.shared.timers.next_deadline_ns()


def test_age_is_kept_watch_on_after_a_restart(world: World) -> None:
    world.create("S", storage="file", max_age=SECOND_NS)
    world.ask("S", "old")

    world.restart()
    world.advance(1.1)

    assert [] == sequences(world)


def test_a_narrower_limit_applies_at_once(world: World) -> None:
    world.create("S")
    for payload in "abc":
        world.ask("S", payload)

    world.call("STREAM.UPDATE.S", name="S", storage="memory", max_msgs=1)

    assert [3] == sequences(world)


def test_an_update_changes_what_is_listened_to(world: World) -> None:
    world.create("S", subjects=["a", "b"])
    world.call("STREAM.UPDATE.S", name="S", storage="memory", subjects=["b", "c"])

    assert b"NATS/1.0 503" == world.ask("a", "x")[0][:12]
    assert 1 == world.ask("b", "x")["seq"]
    assert 2 == world.ask("c", "x")["seq"]


def test_a_first_sequence_is_where_a_stream_begins(world: World) -> None:
    state = world.create("S", first_seq=50)["state"]

    assert (50, 49) == (state["first_seq"], state["last_seq"])
    assert 50 == world.ask("S", "x")["seq"]


def test_a_purge_leaves_the_sequence_where_it_was(world: World) -> None:
    world.create("S")
    world.ask("S", "x")
    assert 1 == world.call("STREAM.PURGE.S")["purged"]

    state = world.state("S")
    assert (0, 2, 1) == (state["messages"], state["first_seq"], state["last_seq"])
    assert 2 == world.ask("S", "x")["seq"]


def test_a_request_that_wants_no_answer_costs_nobody_an_ack(world: World) -> None:
    world.create("S", storage="file")
    world.publish("S", "x", reply="_INBOX.1")
    world.publish("$JS.API.STREAM.MSG.DELETE.S", '{"seq":9}')
    world.publish("S", "x", reply="_INBOX.2")
    world.settle()

    assert [1, 2] == [ack["seq"] for ack in world.received()]


def test_consumers_see_a_message_only_when_it_is_safe(world: World) -> None:
    world.create("S", storage="file")
    witness = Witness(world, "S")

    world.publish("S", "x")
    assert ([], 0) == (witness.heard, witness.stream.visible_sequence)
    world.settle()
    assert [1] == witness.heard


def test_without_a_sync_before_the_ack_they_see_it_as_soon_as_it_is_written(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, sync_interval=60.0)
    world.create("S", storage="file")
    witness = Witness(world, "S")

    world.publish("S", "x", reply="_INBOX.ack")
    works, _ = world.shared.write_unsynced()

    assert [{"stream": "S", "seq": 1}] == world.received()
    assert [1] == witness.heard
    assert 0 == witness.stream.store.durable_sequence
    for work in works:
        work.run()
        work.finish()
    assert 1 == witness.stream.store.durable_sequence


def test_a_work_queue_drops_what_is_acked(world: World) -> None:
    world.create("S", retention="workqueue")
    witness = Witness(world, "S")
    for payload in "abc":
        world.ask("S", payload)

    witness.settle(1, 3)

    assert [2] == sequences(world)


def test_by_limits_an_ack_drops_nothing(world: World) -> None:
    world.create("S")
    witness = Witness(world, "S")
    world.ask("S", "a")

    witness.settle(1)

    assert [1] == sequences(world)


def test_by_interest_a_message_stays_until_everybody_is_done_with_it(world: World) -> None:
    world.create("S", retention="interest")
    first, second = Witness(world, "S", "A"), Witness(world, "S", "B")
    for payload in "ab":
        world.ask("S", payload)

    first.settle(1, 2)
    assert [1, 2] == sequences(world)
    second.settle(1)
    assert [2] == sequences(world)


def test_by_interest_a_consumer_that_goes_takes_its_messages_with_it(world: World) -> None:
    world.create("S", retention="interest")
    first, second = Witness(world, "S", "A"), Witness(world, "S", "B")
    for payload in "ab":
        world.ask("S", payload)
    first.settle(1)

    del second.stream.consumers["B"]
    second.stream.consumers_changed()

    assert [2] == sequences(world)


def test_by_interest_a_subject_nobody_wants_is_not_kept(world: World) -> None:
    world.create("S", retention="interest", subjects=["S", "T"])
    Witness(world, "S")
    world.ask("S", "x")
    world.ask("T", "x")

    assert [1] == sequences(world)


def test_consumers_hear_of_a_purge(world: World) -> None:
    world.create("S")
    witness = Witness(world, "S")

    world.call("STREAM.PURGE.S")

    assert "purged" in witness.heard


def test_acks_reach_their_consumer_together(world: World) -> None:
    world.create("S")
    one, other = Witness(world, "S", "A"), Witness(world, "S", "B")

    world.send(
        b"PUB $JS.ACK.S.A.1.1.1.9.0 0\r\n\r\n"
        b"PUB $JS.ACK.S.A.1.2.2.9.0 0\r\n\r\n"
        b"PUB $JS.ACK.S.B.1.1.1.9.0 0\r\n\r\n"
        b"PUB $JS.ACK.S.NOPE.1.1.1.9.0 0\r\n\r\n"
        b"PUB $JS.ACK._.hash.S.A.1.3.3.9.0 0\r\n\r\n"
        b"PUB $JS.ACK.S 0\r\n\r\n"
    )

    assert [[b"1.1.1.9.0", b"1.2.2.9.0"], [b"1.3.3.9.0"]] == one.heard
    assert [[b"1.1.1.9.0"]] == other.heard


def test_pull_requests_and_flow_control_reach_their_consumer(world: World) -> None:
    world.create("S")
    witness = Witness(world, "S")

    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.W", "1", reply="_INBOX.pull")
    world.publish("$JS.FC.S.W.token")
    world.publish("$JS.FC.S")

    assert [b"_INBOX.pull", b"$JS.FC.S.W.token"] == witness.heard


def test_a_pull_from_nobody_has_no_responder(world: World) -> None:
    world.create("S")

    assert b"NATS/1.0 503" == world.ask("$JS.API.CONSUMER.MSG.NEXT.S.NOPE", "1")[0][:12]


def test_a_failing_disk_refuses_publishes_until_it_is_well_again(world: World) -> None:
    world.create("S", storage="file")
    world.ask("S", "before")

    world.disk.is_broken = True
    world.publish("S", "during", reply="_INBOX.during")
    world.settle()
    assert [] == world.received()
    code, text = error(world.ask("S", "still"))
    assert 10077 == code
    assert "No space left on device" in text
    assert {"S": text} == world.engine.failures()

    world.disk.is_broken = False
    world.advance(1.1)
    assert [10077] == [error(each)[0] for each in world.received()]
    world.advance(1.1)
    assert {} == world.engine.failures()
    assert 2 == world.ask("S", "after")["seq"]


def test_nothing_acknowledged_is_lost_when_the_disk_failed_in_between(world: World) -> None:
    world.create("S", storage="file")
    acked = [world.ask("S", "1")["seq"]]
    world.disk.is_broken = True
    world.publish("S", "2")
    world.settle()
    world.disk.is_broken = False
    world.advance(1.1)
    world.advance(1.1)
    acked.append(world.ask("S", "3")["seq"])

    world.restart()

    assert set(acked) <= set(sequences(world))


def test_an_api_answer_that_promises_what_failed_is_an_error(world: World) -> None:
    world.create("S", storage="file")
    world.ask("S", "x")
    world.disk.is_broken = True
    world.publish("$JS.API.STREAM.MSG.DELETE.S", '{"seq":1}', reply="_INBOX.1")
    world.settle()
    assert [] == world.received()

    world.disk.is_broken = False
    world.advance(1.1)

    assert [10077] == [error(each)[0] for each in world.received()]
    assert [1] == sequences(world)


def test_an_ack_waits_for_the_commit_that_syncs_the_segment_its_message_is_in(
    world: World,
) -> None:
    world.create("S", storage="file")
    world.publish("S", "old", reply="_INBOX.1")
    world.publish("$JS.API.STREAM.PURGE.S", '{"seq":100}', reply="_INBOX.2")
    world.publish("S", "new", reply="_INBOX.3")
    world.publish("S", "newer", reply="_INBOX.4")

    commit = world.shared.begin_commit()
    assert commit is not None
    commit.run()
    commit.finish()

    durable = world.engine.streams["S"].store.durable_sequence
    assert all(answer.get("seq", 0) <= durable for answer in world.received())
    world.settle()
    assert 101 == world.engine.streams["S"].store.durable_sequence
    assert [None, 100, 101] == [answer.get("seq") for answer in world.received()]
