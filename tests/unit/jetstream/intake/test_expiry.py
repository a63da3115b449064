"""Messages that live for a time, and the markers that the last of a subject leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.world import SECOND_NS, World, error

from penstock.protocol import headers

MINUTE_NS = 60 * SECOND_NS


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def last(world: World, stream: str) -> tuple[int, str, Any]:
    """Return the newest message: sequence, subject, headers."""
    store = world.engine.streams[stream].store
    message = store.get(store.last_sequence)
    assert message is not None
    return message[0], message[2].decode(), dict(headers.decode(message[3]))


def test_a_message_lives_as_long_as_it_says(world: World) -> None:
    world.create("S", allow_msg_ttl=True)
    for ttl in ("3", "1s", "never", "2s"):
        world.ask("S", ttl, Nats_TTL=ttl)

    left = []
    for _ in range(3):
        world.advance(1)
        left.append([payload for *_, payload in world.messages("S")])

    assert [[b"3", b"never", b"2s"], [b"3", b"never"], [b"never"]] == left


@pytest.mark.parametrize("ttl", ["0", "999ms", "-1s", "soon", "1x", "1.5", "9" * 400 + "s"])
def test_a_time_to_live_that_is_nonsense_is_refused(world: World, ttl: str) -> None:
    world.create("S", allow_msg_ttl=True)
    assert (10165, "invalid per-message TTL") == error(world.ask("S", "x", Nats_TTL=ttl))


def test_a_time_to_live_goes_on_after_a_restart(world: World) -> None:
    world.create("S", allow_msg_ttl=True, storage="file")
    world.send(b"PUB S 1\r\nx\r\n" * 2500)
    world.ask("S", "y", Nats_TTL="1h30m")
    world.ask("S", "z", Nats_TTL="5s")

    world.restart()
    for _ in range(3):
        world.advance(2)

    assert 2501 == world.state("S")["messages"]
    world.advance(5400)
    assert 2500 == world.state("S")["messages"]


def test_a_message_that_was_acked_expires_after_a_crash(world: World) -> None:
    world.create("S", allow_msg_ttl=True, storage="file")
    assert 1 == world.ask("S", "x", Nats_TTL="5s")["seq"]

    again = World(world.directory)
    again.now_ns = world.now_ns
    again.advance(6)

    assert [] == again.messages("S")


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_what_lives_for_ever_outlives_max_age(world: World, storage: str) -> None:
    world.create("S", allow_msg_ttl=True, max_age=10 * SECOND_NS, storage=storage)
    for ttl in ("never", "1h", "2s", "never"):
        world.ask("S", ttl, Nats_TTL=ttl)
    world.ask("S", "plain")

    world.advance(5)
    assert [1, 2, 4, 5] == [sequence for sequence, *_ in world.messages("S")]
    world.advance(6)

    assert [1, 4] == [sequence for sequence, *_ in world.messages("S")]


def test_what_lives_for_ever_does_so_after_a_restart(world: World) -> None:
    world.create("S", allow_msg_ttl=True, max_age=10 * SECOND_NS, storage="file")
    for ttl in ("never", "1h", "never"):
        world.ask("S", ttl, Nats_TTL=ttl)
    world.now_ns += 11 * SECOND_NS

    world.restart()
    world.advance(1)

    assert [1, 3] == [sequence for sequence, *_ in world.messages("S")]


def test_many_grow_too_old_a_piece_at_a_time(world: World) -> None:
    world.create("S", allow_msg_ttl=True, max_age=10 * SECOND_NS)
    world.ask("S", "kept", Nats_TTL="never")
    world.send(b"PUB S 1\r\nx\r\n" * 3500)
    world.advance(9)
    world.ask("S", "young")

    for _ in range(5):
        world.advance(1)

    assert [b"kept", b"young"] == [payload for *_, payload in world.messages("S")]


def test_another_max_age_looks_at_all_ages_again(world: World) -> None:
    world.create("S", allow_msg_ttl=True)
    world.ask("S", "1")
    world.ask("S", "2", Nats_TTL="never")
    world.now_ns += 5 * SECOND_NS
    world.ask("S", "3")

    changed = {"allow_msg_ttl": True, "max_age": 3 * SECOND_NS}
    world.call("STREAM.UPDATE.S", name="S", storage="memory", **changed)

    assert [2, 3] == [sequence for sequence, *_ in world.messages("S")]


@pytest.mark.parametrize("storage", ["file", "memory"])
def test_the_last_message_of_a_subject_leaves_a_marker(world: World, storage: str) -> None:
    options = {"max_age": 10 * SECOND_NS, "subject_delete_marker_ttl": MINUTE_NS}
    world.create("S", subjects=["s.*"], storage=storage, **options)
    for subject in ("s.a", "s.b", "s.a"):
        world.ask(subject, "x")

    world.advance(11)

    assert [(4, "s.b", b""), (5, "s.a", b"")] == world.messages("S")
    told = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1m0s", "Nats-Rollup": "sub"}
    assert (5, "s.a", told) == last(world, "S")
    for _ in range(8):
        world.advance(10)
    assert [] == world.messages("S")


def test_a_full_subject_makes_room_for_its_marker(world: World) -> None:
    full = {"discard": "new", "max_msgs_per_subject": 1, "discard_new_per_subject": True}
    world.create("S", subject_delete_marker_ttl=MINUTE_NS, max_age=10 * SECOND_NS, **full)
    world.ask("S", "x")

    world.advance(11)

    assert [(2, "S", b"")] == world.messages("S")


def test_a_message_whose_own_time_is_up_leaves_a_marker(world: World) -> None:
    world.create("S", subjects=["s.*"], subject_delete_marker_ttl=2 * SECOND_NS)
    world.ask("s.a", "1")
    world.ask("s.a", "2", Nats_TTL="5s")
    world.ask("s.b", "3", Nats_TTL="5s")
    world.ask("s.c", "4", Nats_TTL="5s", KV_Operation="PURGE")

    world.advance(5.5)

    assert [(1, "s.a", b"1"), (5, "s.b", b"")] == world.messages("S")
    assert "2s" == last(world, "S")[2]["Nats-TTL"]


def test_a_marker_goes_after_a_restart_too(world: World) -> None:
    options = {"max_age": 10 * SECOND_NS, "subject_delete_marker_ttl": MINUTE_NS}
    world.create("S", storage="file", **options)
    world.ask("S", "x")
    world.advance(11)
    world.restart()
    assert [(2, "S", b"")] == world.messages("S")

    world.advance(1)
    world.advance(60)

    assert [] == world.messages("S")


def test_a_marker_that_can_not_be_stored_is_stored_later(world: World) -> None:
    world.create("S", subjects=["s.*"], storage="file", subject_delete_marker_ttl=SECOND_NS)
    world.ask("s.a", "x", Nats_TTL="2s")
    world.disk.is_broken = True
    world.publish("s.b", "y")
    world.settle()
    world.advance(3)
    assert [(1, "s.a", b"x"), (2, "s.b", b"y")] == world.messages("S")

    world.disk.is_broken = False
    for _ in range(3):
        world.advance(1)

    assert [(2, "s.a", b"")] == world.messages("S")


def test_a_time_to_live_is_at_least_that_of_the_marker(world: World) -> None:
    world.create("S", subject_delete_marker_ttl=MINUTE_NS)
    world.ask("S", "x", Nats_TTL="5s", Other="y")

    assert {"Other": "y", "Nats-TTL": "60"} == last(world, "S")[2]


def test_a_marker_is_told_to_those_who_follow_a_bucket(world: World) -> None:
    world.create("S", subjects=["s.*"], subject_delete_marker_ttl=SECOND_NS)
    config = {
        "deliver_subject": "w",
        "deliver_policy": "last_per_subject",
        "filter_subject": "s.*",
        "ack_policy": "none",
    }
    world.send(b"SUB w 5\r\n")
    world.call("CONSUMER.CREATE.S", stream_name="S", config=config)
    world.publish("s.a", "x", Nats_TTL="1s")
    world.settle()
    world.received()

    world.advance(1.5)

    (header, payload), *rest = world.received()
    assert (b"", []) == (payload, rest)
    assert b"MaxAge" == headers.get(header, b"Nats-Marker-Reason")
