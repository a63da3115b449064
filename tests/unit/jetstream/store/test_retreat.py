"""A stream whose disk fails goes back to what is durable, and so does all that hangs on it."""

from __future__ import annotations

import errno
import itertools
import json
import os
from typing import Any

import pytest
from tests.simdisk import SimDisk
from tests.unit.jetstream.consuming import consume, payloads, request
from tests.unit.jetstream.world import SECOND_NS, START_NS, World, error

from penstock.config.jetstream import JetStreamConfig
from penstock.core.broker import TURN_NS
from penstock.jetstream.files.streamfiles import StreamFiles

STORE_FAILED = 10077


class SmallWorld(World):
    """One client, and a disk that is full when it is told to be."""

    def __init__(self, **settings: Any) -> None:
        self.now_ns = START_NS
        self.config = JetStreamConfig(store_dir="store", **settings)
        self.remotes = {}
        self.disk = SimDisk()
        self._start()

    def files(self) -> StreamFiles:
        return StreamFiles(self.disk, self.config.store_dir, "$G")

    def fill(self) -> None:
        """Leave no room for anything."""
        self.disk.capacity_bytes = self.disk.used_bytes

    def heal(self) -> None:
        """Make room, and wait until that is noticed."""
        self.disk.capacity_bytes = None
        for _ in range(3):
            self.advance(1.1)
        assert self.engine.failures() == {}

    def refused(self) -> list[int]:
        """Return the errors that came."""
        return [error(each)[0] for each in self.received() if "error" in each]


@pytest.fixture
def world() -> SmallWorld:
    world = SmallWorld()
    world.create("S", subjects=["s.*"], storage="file", allow_direct=True)
    world.ask("s.a", "1", Nats_Msg_Id="one")
    return world


def test_a_publish_that_is_refused_is_not_there_when_there_is_room(world: SmallWorld) -> None:
    world.fill()
    assert STORE_FAILED == error(world.ask("s.a", "2", Nats_Msg_Id="two"))[0]
    world.heal()

    assert [(1, "s.a", b"1")] == world.messages("S")
    again = world.ask("s.a", "2", Nats_Msg_Id="two")
    assert (2, None) == (again["seq"], again.get("duplicate"))
    assert world.ask("s.a", "1", Nats_Msg_Id="one")["duplicate"] is True


def test_a_delete_that_is_refused_is_not_made_later(world: SmallWorld) -> None:
    world.ask("s.a", "2")
    world.fill()
    world.publish("$JS.API.STREAM.MSG.DELETE.S", '{"seq":1}', reply="_INBOX.1")
    world.settle()
    assert [STORE_FAILED] == world.refused()
    assert STORE_FAILED == error(world.call("STREAM.MSG.DELETE.S", seq=1))[0]
    world.heal()

    assert [1, 2] == [each[0] for each in world.messages("S")]


def test_a_purge_that_is_refused_leaves_all_to_consumers(world: SmallWorld) -> None:
    for number in range(2, 7):
        world.ask("s.a", str(number))
    consume(world, "S", "C")
    world.fill()
    assert STORE_FAILED == error(world.call("STREAM.PURGE.S", seq=4))[0]
    world.heal()

    assert [b"1", b"2", b"3"] == payloads(request(world, "S", "C", batch=3))


def test_a_delete_that_is_refused_leaves_its_message_to_consumers(world: SmallWorld) -> None:
    for number in range(2, 4):
        world.ask("s.a", str(number))
    consume(world, "S", "C")
    world.fill()
    world.publish("$JS.API.STREAM.MSG.DELETE.S", '{"seq":2}', reply="_INBOX.1")
    came = payloads(request(world, "S", "C", batch=3))

    (refusal,) = [each for each in came if each.startswith(b"{")]
    assert error(json.loads(refusal))[0] == STORE_FAILED
    assert [b"1", b"2", b"3"] == [each for each in came if each != refusal]


def test_reads_are_answered_while_the_disk_is_full(world: SmallWorld) -> None:
    world.fill()
    world.ask("s.a", "2")

    assert 1 == world.state("S")["last_seq"]
    assert 1 == world.call("STREAM.MSG.GET.S", last_by_subj="s.a")["message"]["seq"]
    assert b"1" == world.ask("$JS.API.DIRECT.GET.S.s.a")[1]


def test_a_read_waits_for_what_it_would_show(world: SmallWorld) -> None:
    world.publish("s.b", "2")
    world.publish("$JS.API.DIRECT.GET.S.s.b", reply="_INBOX.1")
    world.publish("$JS.API.STREAM.INFO.S", reply="_INBOX.2")
    wrong = {"Nats_Expected_Last_Sequence": "1"}
    world.publish("s.b", "3", reply="_INBOX.3", **wrong)
    assert [] == world.received()
    world.publish("$JS.API.DIRECT.GET.S.s.a", reply="_INBOX.4")
    assert [b"1"] == [payload for _, payload in world.received()]
    world.settle()

    (_, payload), told, refused = world.received()
    assert (b"2", 2) == (payload, told["state"]["last_seq"])
    assert "wrong last sequence: 2" == error(refused)[1]


def test_a_read_is_made_again_if_what_it_would_show_is_taken_back(world: SmallWorld) -> None:
    world.fill()
    world.publish("s.a", "2")
    world.publish("$JS.API.DIRECT.GET.S.s.a", reply="_INBOX.1")
    world.publish("$JS.API.STREAM.INFO.S", reply="_INBOX.2")
    world.publish("s.a", "3", reply="_INBOX.3", Nats_Expected_Last_Sequence="1")
    world.settle()

    (_, payload), told, refused = world.received()
    assert (b"1", 1) == (payload, told["state"]["last_seq"])
    assert STORE_FAILED == error(refused)[0]


@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("fails_after", [0, 1, 2])
def test_a_direct_get_in_turns_is_answered_whenever_the_disk_fails(
    world: SmallWorld, fails_after: int, publishes: bool
) -> None:
    """With what is stored; and not from before the failure, of which a part was taken back."""
    hurry = itertools.count(step=2 * TURN_NS // 3)
    world.broker.clock_ns = lambda: next(hurry)
    world.fill()
    if publishes:
        world.publish("s.a", "2")
    world.publish("$JS.API.DIRECT.GET.S", '{"multi_last":["s.*"]}', reply="_INBOX.1")
    assert world.session.put_off
    if not publishes:
        world.publish("s.a", "2")
    for _ in range(fails_after):
        world.broker.behind.clear()
        world.session.go_on()
    world.settle()
    while world.session.put_off:
        world.broker.behind.clear()
        world.session.go_on()
        world.settle()

    assert [b"1", b""] == [payload for _, payload in world.received()]


def test_a_consumer_of_what_is_new_gets_what_takes_the_place_of_what_was_taken_back(
    world: SmallWorld,
) -> None:
    world.publish("s.a", "2")
    config = {"name": "C", "durable_name": "C", "mem_storage": True, "ack_policy": "explicit"}
    body = json.dumps({"stream_name": "S", "config": config | {"deliver_policy": "new"}})
    world.publish("$JS.API.CONSUMER.CREATE.S.C", body)
    world.fill()
    world.settle()
    world.heal()
    world.ask("s.a", "3")

    assert [(2, "s.a", b"3")] == world.messages("S")[1:]
    assert [b"3"] == payloads(request(world, "S", "C", batch=5, no_wait=True))[:1]


def test_messages_that_a_limit_pushed_out_come_back(world: SmallWorld) -> None:
    world.create("L", subjects=["l"], storage="file", max_msgs=2)
    for number in range(2):
        world.ask("l", str(number))
    world.fill()
    assert STORE_FAILED == error(world.ask("l", "2"))[0]
    assert [b"0", b"1"] == [each[2] for each in world.messages("L")]
    world.heal()
    world.ask("l", "3")

    assert [b"1", b"3"] == [each[2] for each in world.messages("L")]


def test_what_was_to_expire_still_does(world: SmallWorld) -> None:
    world.create("T", subjects=["t"], storage="file", allow_msg_ttl=True)
    world.ask("t", "1", Nats_TTL="10s")
    world.fill()
    assert STORE_FAILED == error(world.ask("t", "2", Nats_TTL="1s"))[0]
    world.heal()
    world.ask("t", "3")
    world.advance(2)
    assert [b"1", b"3"] == [each[2] for each in world.messages("T")]
    world.advance(10)

    assert [b"3"] == [each[2] for each in world.messages("T")]


def test_an_acked_message_of_a_work_queue_goes_when_there_is_room(world: SmallWorld) -> None:
    world.create("W", subjects=["w"], storage="file", retention="workqueue")
    world.ask("w", "1")
    world.ask("w", "2")
    consume(world, "W", "C", ack_wait=60 * SECOND_NS)
    message = request(world, "W", "C", batch=1)[0]
    world.fill()
    world.publish(message.reply, "+ACK")
    world.settle()
    world.heal()

    assert [b"2"] == [each[2] for each in world.messages("W")]


def test_with_a_sync_interval_nothing_is_taken_back() -> None:
    world = SmallWorld(sync_interval=60.0)
    world.create("S", subjects=["s"], storage="file")
    world.fill()
    world.publish("s", "1", reply="_INBOX.1")
    works, _ = world.shared.write_unsynced()
    assert ([], []) == (works, world.received())
    assert world.engine.failures() != {}
    world.disk.capacity_bytes = None
    world.now_ns += 2 * SECOND_NS
    world.shared.timers.run(world.now_ns)
    for work in world.shared.write_unsynced()[0]:
        work.run()
        work.finish()
    world.engine.retry_failed()
    world.engine.context.touch(world.engine.streams["S"])
    world.shared.write_unsynced()

    assert [1] == [each["seq"] for each in world.received()]


@pytest.mark.parametrize("seed", range(10))
def test_what_a_killed_server_could_not_sync_is_durable_after_a_restart(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SmallWorld()
    world.disk = SimDisk(seed)
    world._start()
    world.create("S", subjects=["s.*"], storage="file")
    assert 1 == world.ask("s.a", "before")["seq"]
    with monkeypatch.context() as patched:
        broken = OSError(errno.EIO, os.strerror(errno.EIO))
        patched.setattr(world.disk, "trouble", lambda action: broken if action != "write" else None)
        world.publish("s.a", "in doubt")
        world.settle()
    # Killed: what the failed sync dropped is still in the page cache.
    world._start()
    assert 3 == world.ask("s.a", "acked")["seq"]
    world.disk = world.disk.crash()
    world._start()

    assert [b"before", b"in doubt", b"acked"] == [each[2] for each in world.messages("S")]
