"""Fast batches: when their answers leave, and when they are given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import World, error

from penstock.jetstream.intake import fastbatch


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("F", subjects=["f.>"], allow_batched=True, storage="file")
    return world


def send(world: World, place: str, payload: str = "x", **pairs: str) -> list[Any]:
    """Publish one message of a batch; return what is answered."""
    world.publish("f.x", payload, reply=f"_INBOX.{place}.$FI", **pairs)
    world.settle()
    return world.received()


def test_answers_wait_for_the_disk(world: World) -> None:
    world.publish("f.x", "x", reply="_INBOX.a.10.fail.1.2.$FI")
    assert [] == world.received()
    world.settle()

    assert [{"stream": "F", "seq": 1, "batch": "a", "count": 1}] == world.received()


def test_the_pace_grows_to_what_was_asked_for(world: World) -> None:
    send(world, "other.4.fail.1.0")
    paces = [
        answer["msgs"]
        for sequence in range(1, 20)
        for answer in send(world, f"a.8.fail.{sequence}.{0 if sequence == 1 else 1}")
    ]

    assert [1, 2, 4, 8, 8] == paces


def test_a_batch_has_one_deadline_however_many_messages_it_has(world: World) -> None:
    send(world, "a.8.fail.1.0")
    before = len(world.shared.timers._heap)
    for sequence in range(2, 50):
        send(world, f"a.8.fail.{sequence}.1")
        world.advance(1)

    assert len(world.shared.timers._heap) <= before
    assert {"stream": "F", "seq": 50, "batch": "a", "count": 50} in send(world, "a.8.fail.50.2")


def test_the_pace_falls_when_others_come(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastbatch, "FLOW_SHARED", 4)
    send(world, "a.4.fail.1.0")
    send(world, "b.4.fail.1.0")
    answers = [send(world, f"a.4.fail.{sequence}.1") for sequence in (2, 3, 4)]

    assert [[], [], [{"type": "ack", "seq": 4, "msgs": 2}]] == answers


def test_a_batch_that_nobody_adds_to_is_given_up(world: World) -> None:
    send(world, "a.10.fail.1.0")
    world.advance(11)

    assert 10208 == error(send(world, "a.10.fail.2.1")[0])[0]
    assert 1 == world.state("F")["messages"]


def test_only_so_many_batches_are_open_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastbatch, "BATCHES_MAX", 1)
    send(world, "a.10.fail.1.0")

    assert 10211 == error(send(world, "b.10.fail.1.0")[0])[0]


def test_a_disk_that_fails_ends_the_batch(world: World) -> None:
    send(world, "a.10.fail.1.0")
    world.disk.is_broken = True
    world.publish("f.y", "y")
    world.settle()
    world.received()
    world.publish("f.x", "x", reply="_INBOX.a.10.fail.2.1.$FI")
    world.settle()

    assert all("error" in answer for answer in world.received())


def test_a_message_that_is_too_large_or_comes_too_late_is_refused(world: World) -> None:
    changed = {"name": "F", "subjects": ["f.>"], "allow_batched": True, "max_msg_size": 10}
    world.call("STREAM.UPDATE.F", **changed)
    assert 10054 == error(send(world, "a.10.fail.1.0", "x" * 11)[0])[0]

    world.call("STREAM.UPDATE.F", **changed, sealed=True)

    assert 10109 == error(send(world, "a.10.fail.1.0")[0])[0]


def test_the_same_message_again_as_a_batch_of_its_own_says_so(world: World) -> None:
    send(world, "a.10.fail.1.2", Nats_Msg_Id="m")
    (answer,) = send(world, "b.10.fail.1.2", Nats_Msg_Id="m")

    assert {"stream": "F", "seq": 1, "duplicate": True, "batch": "b", "count": 1} == answer
