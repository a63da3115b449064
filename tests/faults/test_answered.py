"""
A disk that fails for long: every question is answered soon, and all works again when it does.

What was asked to change something when the disk failed is in doubt, and waits for the disk. Nobody
else does: readers get what is certain, or an error, and later requests are refused at once.
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from tests.simdisk import SimDisk
from tests.unit.jetstream.consuming import consume, payloads, received, request
from tests.unit.jetstream.world import World, error

from penstock.jetstream.store.values import complete

STORE_FAILED = 10077


@pytest.fixture
def world() -> World:
    world = World(Path("store"), disk=SimDisk())
    world.create("S", subjects=["s.*"], storage="file", allow_direct=True)
    assert [1, 2] == [world.ask("s.a", str(number))["seq"] for number in (1, 2)]
    consume(world, "S", "C")
    return world


def get(world: World, **options: Any) -> Any:
    return world.call("STREAM.MSG.GET.S", **options)


def heal(world: World) -> None:
    world.disk.fault_rate = world.disk.read_fault_rate = 0.0
    for _ in range(4):
        world.advance(1.1)
    assert {} == world.engine.failures()


def test_a_list_of_consumers_shows_only_what_is_durable(world: World) -> None:
    world.publish("s.a", "3")
    world.publish("$JS.API.CONSUMER.LIST.S", reply="_INBOX.1")
    assert [] == world.received()
    world.settle()

    (listed,) = world.received()
    assert 3 == listed["consumers"][0]["num_pending"]


def test_readers_get_what_is_certain_while_nobody_knows_the_rest(world: World) -> None:
    assert 3 == world.ask("s.b", "b")["seq"]
    world.disk.fault_rate = 1.0
    world.publish("s.a", "3", reply="_INBOX.doubt")
    world.settle()
    assert [] == world.received()

    assert b"2" == b64decode(get(world, seq=2)["message"]["data"])
    assert b"b" == world.ask("$JS.API.DIRECT.GET.S.s.b")[1]
    assert STORE_FAILED == error(get(world, last_by_subj="s.a"))[0]
    assert b"500 Store Failed" in world.ask("$JS.API.DIRECT.GET.S.s.a")[0]
    for verb in ("STREAM.INFO.S", "CONSUMER.INFO.S.C", "STREAM.PURGE.S"):
        assert STORE_FAILED == error(world.call(verb))[0], verb
    assert STORE_FAILED == error(world.call("STREAM.MSG.DELETE.S", seq=1))[0]
    assert STORE_FAILED == error(world.ask("s.a", "4"))[0]

    heal(world)
    assert [STORE_FAILED] == [error(each)[0] for each in world.received()]
    assert 4 == world.ask("s.a", "5")["seq"]
    assert 4 == world.state("S")["messages"]


def test_who_asked_before_the_disk_failed_is_answered_too(world: World) -> None:
    world.disk.fault_rate = 1.0
    world.publish("s.a", "3", reply="_INBOX.doubt")
    world.publish("$JS.API.STREAM.INFO.S", reply="_INBOX.info")
    world.publish("$JS.API.STREAM.MSG.GET.S", '{"seq":2}', reply="_INBOX.get")
    world.publish("s.a", "4", reply="_INBOX.cas", Nats_Expected_Last_Sequence="9")
    world.publish("$JS.API.DIRECT.GET.S.s.a", reply="_INBOX.direct")
    world.settle()

    answers = {subject: data for _, subject, _, _, _, data in world.operations()}
    assert {b"_INBOX.info", b"_INBOX.get", b"_INBOX.cas", b"_INBOX.direct"} == answers.keys()
    assert STORE_FAILED == error(json.loads(answers[b"_INBOX.info"]))[0]
    assert STORE_FAILED == error(json.loads(answers[b"_INBOX.cas"]))[0]
    assert 2 == json.loads(answers[b"_INBOX.get"])["message"]["seq"]

    heal(world)
    assert [b"_INBOX.doubt"] == [subject for _, subject, *_ in world.operations()]


def test_what_cannot_be_read_back_is_refused_until_it_can(world: World) -> None:
    world.disk.fault_rate = world.disk.read_fault_rate = 1.0
    world.publish("s.a", "3", reply="_INBOX.doubt")
    world.settle()
    world.disk.fault_rate = 0.0
    for _ in range(3):
        world.advance(1.1)
        assert STORE_FAILED == error(world.call("STREAM.INFO.S"))[0]
        assert STORE_FAILED == error(world.ask("s.a", "4"))[0]

    heal(world)
    assert [STORE_FAILED] == [error(each)[0] for each in world.received()]
    assert 2 == world.state("S")["messages"]


def killed(world: World) -> World:
    """Return the server after it was killed: it has to read its disk for everything."""
    world._start()
    return world


def test_a_pull_of_what_cannot_be_read_costs_nobody_the_connection(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    killed(world).disk.read_fault_rate = 1.0

    assert [] == payloads(request(world, "S", "C", batch=2, expires=30 * 10**9))
    for _ in range(3):
        world.advance(1)
    assert [] == payloads(received(world))
    world.disk.read_fault_rate = 0.0
    world.advance(1.1)

    assert [b"1", b"2"] == payloads(received(world))
    assert 1 == caplog.text.count("consumer `C` has to wait")


def test_a_pull_of_what_cannot_be_read_ends_when_it_is_over(world: World) -> None:
    killed(world).disk.read_fault_rate = 1.0
    request(world, "S", "C", batch=2, expires=2 * 10**9)
    for _ in range(3):
        world.advance(1)

    assert b"408 Request Timeout" in world.received()[-1][0]


@pytest.mark.parametrize("is_gone", [False, True], ids=["message there", "message gone"])
def test_an_id_that_cannot_be_looked_up_is_refused_and_not_stored_twice(
    world: World, is_gone: bool
) -> None:
    assert 3 == world.ask("s.a", "3", Nats_Msg_Id="three")["seq"]
    if is_gone:
        # They are overwritten, and the id goes into a file of its own.
        for sequence in (1, 2, 3):
            assert world.call("STREAM.MSG.DELETE.S", seq=sequence)["success"]
        while (task := world.engine.maintain()) is not None:
            complete(task)
            world.settle()
    killed(world).disk.read_fault_rate = 1.0
    for _ in range(2):
        assert STORE_FAILED == error(world.ask("s.a", "3", Nats_Msg_Id="three"))[0]
    world.disk.read_fault_rate = 0.0

    again = world.ask("s.a", "3", Nats_Msg_Id="three")
    assert (3, True) == (again["seq"], again["duplicate"])


def test_interest_drops_an_acked_message_once_it_can_be_read(world: World) -> None:
    world.create("I", subjects=["i"], storage="file", retention="interest")
    for name in ("A", "B"):
        consume(world, "I", name, filter_subject="i")
    world.ask("i", "1")
    killed(world)
    acks = [request(world, "I", name, batch=1)[0].reply for name in ("A", "B")]
    world.disk.read_fault_rate = 1.0
    for ack in acks:
        world.publish(ack, "+ACK")
    world.settle()
    world.disk.read_fault_rate = 0.0
    world.advance(1.1)
    world.settle()

    assert 0 == world.state("I")["messages"]
