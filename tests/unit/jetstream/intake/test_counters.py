"""Counters, and the sums of counters of other streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import World, error

from penstock.protocol import headers


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def count(world: World, subject: str, by: str) -> Any:
    return world.ask(subject, Nats_Incr=by)


def last(world: World, stream: str, subject: str) -> tuple[bytes, dict[str, str]]:
    store = world.engine.streams[stream].store
    message = store.get(store.last(subject.encode())[0])
    assert message is not None
    return message[4], dict(headers.decode(message[3]))


def test_a_message_counts_and_says_how_much_it_is(world: World) -> None:
    world.create("C", subjects=["c.*"], allow_msg_counter=True)
    count(world, "c.a", "+5")

    assert {"stream": "C", "seq": 2, "val": "3"} == count(world, "c.a", "-2")
    assert "1" == count(world, "c.b", "1")["val"]
    assert (b'{"val":"3"}', {"Nats-Incr": "-2"}) == last(world, "C", "c.a")


def test_a_number_has_no_bound(world: World) -> None:
    world.create("C", allow_msg_counter=True)
    count(world, "C", "9" * 40)

    assert f"1{'0' * 40}" == count(world, "C", "1")["val"]


def test_a_count_goes_on_after_a_restart(world: World) -> None:
    world.create("C", allow_msg_counter=True, storage="file", max_msgs_per_subject=1)
    count(world, "C", "5")
    world.restart()

    assert "7" == count(world, "C", "2")["val"]


def test_the_same_id_is_counted_once(world: World) -> None:
    world.create("C", allow_msg_counter=True)
    world.ask("C", Nats_Incr="5", Nats_Msg_Id="a")

    assert world.ask("C", Nats_Incr="5", Nats_Msg_Id="a")["duplicate"]
    assert "6" == count(world, "C", "1")["val"]


def test_a_message_that_is_no_counter_breaks_it(world: World) -> None:
    world.create("O", subjects=["c"])
    world.ask("c", "no number")
    world.create("C", allow_msg_counter=True, sources=[{"name": "O"}])
    for _ in range(3):
        world.advance(0)

    assert 0 == world.state("C")["messages"]


def test_a_stream_sums_the_counters_of_others(world: World) -> None:
    for name in ("A", "B"):
        world.create(name, subjects=[f"{name}.>"], allow_msg_counter=True)
    sources = [
        {"name": name, "subject_transforms": [{"src": f"{name}.>", "dest": "sum.>"}]}
        for name in ("A", "B")
    ]
    world.create("S", subjects=["sum.>"], allow_msg_counter=True, sources=sources)
    for subject, by in (("A.x", "5"), ("B.x", "7"), ("A.x", "1"), ("sum.x", "100"), ("B.x", "-2")):
        count(world, subject, by)
        for _ in range(3):
            world.advance(0)

    payload, told = last(world, "S", "sum.x")
    assert b'{"val":"111"}' == payload
    assert '{"A":{"A.x":"6"},"B":{"B.x":"5"}}' == told["Nats-Counter-Sources"]
    assert "-2" == told["Nats-Incr"]


def test_what_was_missed_in_between_is_not_missing_in_the_sum(world: World) -> None:
    world.create("A", subjects=["a"], allow_msg_counter=True, max_msgs_per_subject=1)
    for _ in range(4):
        count(world, "a", "10")
    world.create("S", allow_msg_counter=True, sources=[{"name": "A"}])
    for _ in range(3):
        world.advance(0)

    assert b'{"val":"40"}' == last(world, "S", "a")[0]


def test_a_source_that_does_not_count_stores_counters_as_they_are(world: World) -> None:
    world.create("A", subjects=["a"], allow_msg_counter=True)
    count(world, "a", "10")
    world.create("S", sources=[{"name": "A"}])
    for _ in range(3):
        world.advance(0)

    assert b'{"val":"10"}' == last(world, "S", "a")[0]


@pytest.mark.parametrize("by", ["x", "1.5", "1_0"])
def test_what_is_no_number_is_refused(world: World, by: str) -> None:
    world.create("C", allow_msg_counter=True)
    expected = (10171, "message counter increment is invalid")

    assert expected == error(count(world, "C", by))
