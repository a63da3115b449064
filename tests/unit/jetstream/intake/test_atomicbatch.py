"""Batches that are stored together or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import World, error

from penstock.jetstream.intake import atomicbatch


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("B", subjects=["b.>"], allow_atomic=True, storage="file")
    return world


def add(world: World, batch: str, sequence: int, commit: str = "", **pairs: str) -> Any:
    """Publish one message of a batch; return the answer."""
    told = {"Nats_Batch_Id": batch, "Nats_Batch_Sequence": str(sequence)}
    if commit:
        told["Nats_Batch_Commit"] = commit
    return world.ask(f"b.{sequence}", str(sequence), **told, **pairs)


def test_nothing_is_stored_before_the_commit(world: World) -> None:
    assert b"" == add(world, "a", 1)
    assert b"" == add(world, "a", 2)
    assert [] == world.messages("B")

    expected = {"stream": "B", "seq": 3, "batch": "a", "count": 3}
    assert expected == add(world, "a", 3, "1")
    assert ["b.1", "b.2", "b.3"] == [subject for _, subject, _ in world.messages("B")]


def test_batches_do_not_mix(world: World) -> None:
    for batch in ("a", "b"):
        add(world, batch, 1)
    add(world, "a", 2, "1")
    add(world, "b", 2, "eob")

    assert [b"1", b"2", b"1"] == [payload for *_, payload in world.messages("B")]


def test_what_does_not_hold_for_one_message_stores_none(world: World) -> None:
    add(world, "a", 1)
    answer = add(world, "a", 2, "1", Nats_Expected_Stream="X")

    assert (10060, "expected stream does not match") == error(answer)
    assert [] == world.messages("B")


def test_the_answer_waits_for_the_disk(world: World) -> None:
    add(world, "a", 1)
    told = {"Nats_Batch_Id": "a", "Nats_Batch_Sequence": "2", "Nats_Batch_Commit": "1"}
    world.publish("b.2", "2", reply="_INBOX.x", **told)
    assert [] == world.received()
    world.settle()

    assert [2] == [ack["seq"] for ack in world.received()]


def test_a_disk_that_fails_stores_none(world: World) -> None:
    world.disk.is_broken = True
    world.publish("b.x", "x")
    world.settle()
    add(world, "a", 1)

    assert 10077 == error(add(world, "a", 2, "1"))[0]


@pytest.mark.parametrize(("reason", "sequence"), [("incomplete", 3), ("timeout", 0)])
def test_a_batch_that_is_given_up_is_told(world: World, reason: str, sequence: int) -> None:
    world.send(b"SUB $JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.> 2\r\n")
    add(world, "a", 1)
    if sequence:
        told = {"Nats_Batch_Id": "a", "Nats_Batch_Sequence": str(sequence)}
        world.publish("b.x", "", **told)
    else:
        world.advance(11)

    (event,) = world.received()
    assert ("B", "a", reason) == (event["stream"], event["batch"], event["reason"])
    assert "io.nats.jetstream.advisory.v1.stream_batch_abandoned" == event["type"]
    assert 10176 == error(add(world, "a", 2, "1"))[0]


def test_a_batch_that_is_added_to_stays_open(world: World) -> None:
    for sequence in (1, 2, 3):
        add(world, "a", sequence)
        world.advance(9)

    assert 4 == add(world, "a", 4, "1")["count"]


def test_only_so_many_batches_are_open_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomicbatch, "BATCHES_MAX", 2)
    for batch in ("a", "b"):
        add(world, batch, 1)
    assert (10210, "atomic publish too many inflight") == error(add(world, "c", 1))

    add(world, "a", 2, "1")

    assert b"" == add(world, "c", 1)


def test_only_so_many_bytes_wait_in_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomicbatch, "STAGED_BYTES_MAX", 150)
    add(world, "a", 1)
    assert 10210 == error(add(world, "b", 1, Filler="x" * 100))[0]
    assert 10210 == error(add(world, "a", 2, Filler="x" * 100))[0]

    assert "atomic publish batch is incomplete" == error(add(world, "a", 3, "1"))[1]
    assert 1 == add(world, "b", 1, "1")["count"]


def test_ids_of_a_batch_are_known_afterwards(world: World) -> None:
    add(world, "a", 1, Nats_Msg_Id="x")
    add(world, "a", 2, "1", Nats_Msg_Id="y")

    assert world.ask("b.z", "again", Nats_Msg_Id="x")["duplicate"]


def test_a_batch_is_published_again_as_a_whole(tmp_path: Path) -> None:
    world = World(tmp_path)
    republish = {"src": ">", "dest": "_INBOX.rp.>"}
    world.create("B", subjects=["b.>"], allow_atomic=True, republish=republish)
    add(world, "a", 1)
    told = {"Nats_Batch_Id": "a", "Nats_Batch_Sequence": "2", "Nats_Batch_Commit": "1"}
    world.publish("b.2", "2", reply="_INBOX.x", **told)
    world.settle()

    *copies, ack = world.received()
    assert [b"1", b"2"] == [payload for _, payload in copies]
    assert 2 == ack["count"]


@pytest.mark.parametrize("size", [1, 3, 40])
def test_a_power_cut_takes_all_of_a_batch_or_nothing(world: World, size: int) -> None:
    world.ask("b.before", "x")
    for sequence in range(1, size):
        add(world, "a", sequence)
    add(world, "a", size, "1")
    directory = Path(world.engine.files.path("B")) / "messages"
    (segment,) = directory.glob("*.seg")
    data = segment.read_bytes()
    before = world.messages("B")[:1]
    complete = world.messages("B")
    world.engine.close()

    seen = set()
    for end in {*range(len(data) - 60 * size, len(data), 3 * size), len(data)}:
        for path in directory.glob("*"):
            path.unlink()
        segment.write_bytes(data[:end])
        again = World(world.directory)
        found = again.messages("B")
        assert found in (before, complete)
        seen.add(len(found))
        assert len(found) + 1 == again.ask("b.after", "y")["seq"]
        again.engine.close()
    assert {1, size + 1} == seen


def test_a_batch_that_is_not_committed_is_gone_after_a_restart(world: World) -> None:
    add(world, "a", 1)
    world.restart()

    assert 10176 == error(add(world, "a", 2, "1"))[0]
    assert [] == world.messages("B")
