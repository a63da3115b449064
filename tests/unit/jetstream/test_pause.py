"""Consumers that pause, begin again, are slowed down or are sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.consuming import ack, consume, info, payloads, publish, received, request
from tests.unit.jetstream.world import SECOND_NS, World

from penstock.protocol.rfc3339 import format_time


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("S", storage="file")
    publish(world, "S", "a", "b", "c")
    return world


def pause(world: World, name: str, seconds: float) -> Any:
    until = format_time(world.now_ns + int(seconds * SECOND_NS))
    return world.call(f"CONSUMER.PAUSE.S.{name}", pause_until=until)


def events(world: World) -> list[Any]:
    return [json.loads(each.payload) for each in received(world) if "$JS.EVENT" in each.subject]


def test_a_paused_consumer_goes_on_when_its_time_has_come(world: World) -> None:
    consume(world, "S", "C")
    answer = pause(world, "C", 10)
    world.send(b"SUB $JS.EVENT.ADVISORY.CONSUMER.PAUSE.> 5\r\n")
    waiting = request(world, "S", "C", batch=3)
    world.advance(9.9)
    before = received(world)
    world.advance(0.2)
    after = received(world)

    assert (True, 10 * SECOND_NS) == (answer["paused"], answer["pause_remaining"])
    assert [] == waiting == before
    advisory = json.loads(after[0].payload)
    assert (False, answer["pause_until"]) == (advisory["paused"], advisory["pause_until"])
    assert [b"a", b"b", b"c"] == payloads(after[1:])
    assert "paused" not in info(world, "S", "C")


def test_a_push_consumer_pauses_too_and_its_heartbeats_go_on(world: World) -> None:
    consume(world, "S", "P", deliver_subject="push", idle_heartbeat=SECOND_NS)
    pause(world, "P", 60)
    world.send(b"SUB push 7\r\n")
    received(world)
    world.advance(1.1)
    beats = received(world)

    assert ["100 Idle Heartbeat"] == [each.status for each in beats]


def test_what_is_due_again_waits_for_the_end_of_the_pause(world: World) -> None:
    consume(world, "S", "C", ack_wait=SECOND_NS)
    request(world, "S", "C", batch=1)
    pause(world, "C", 10)
    request(world, "S", "C", batch=1)
    world.advance(5)
    during = received(world)
    world.advance(6)

    assert [] == during
    assert [(2, 1)] == [each.numbers[:2] for each in received(world)]


def test_a_pause_outlives_a_restart(world: World) -> None:
    consume(world, "S", "C")
    pause(world, "C", 60)
    world.restart()

    assert [] == request(world, "S", "C", batch=1)
    assert info(world, "S", "C")["paused"]
    world.advance(61)
    assert [b"a"] == payloads(received(world))


def test_a_consumer_that_was_reset_begins_there_after_a_restart_too(world: World) -> None:
    consume(world, "S", "C")
    for message in request(world, "S", "C", batch=3):
        ack(world, message)
    world.call("CONSUMER.RESET.S.C", seq=2)
    world.restart()

    assert (0, 1) == tuple(info(world, "S", "C")["ack_floor"].values())
    assert [(1, 2, 1, 1)] == [each.numbers for each in request(world, "S", "C", batch=1)]


def test_a_reset_of_one_that_began_with_last_messages_begins_with_those_again(world: World) -> None:
    consume(world, "S", "C", deliver_policy="last_per_subject", filter_subject="S")
    request(world, "S", "C", batch=1)
    answer = world.call("CONSUMER.RESET.S.C")

    assert (3, 1) == (answer["reset_seq"], answer["num_pending"])
    assert [b"c"] == payloads(request(world, "S", "C", batch=1))


def test_the_ack_of_a_delivery_before_the_reset_settles_nothing(world: World) -> None:
    consume(world, "S", "C")
    messages = request(world, "S", "C", batch=3)
    world.call("CONSUMER.RESET.S.C", seq=3)
    ack(world, messages[0])
    ack(world, messages[2])

    assert (0, 1) == (
        info(world, "S", "C")["num_ack_pending"],
        info(world, "S", "C")["num_pending"],
    )


def test_nobody_answers_the_reset_of_a_consumer_that_is_not_there(world: World) -> None:
    world.publish("$JS.API.CONSUMER.RESET.S.NOPE", reply="_INBOX.x")
    world.publish("$JS.API.CONSUMER.RESET.NOPE.C", reply="_INBOX.x")

    assert [] == received(world)


def test_a_rate_limit_spreads_messages_over_time(world: World) -> None:
    world.create("R", max_msg_size=1000)
    size = len("R") + len("$JS.ACK.R.P.1.1.1.1800000000000000000.9") + 900
    for _ in range(10):
        publish(world, "R", "x" * 900)
    # One message a second, after the first that fill what may come at once.
    consume(world, "R", "P", deliver_subject="push", ack_policy="none", rate_limit_bps=8 * size)
    world.send(b"SUB push 7\r\n")
    counts = []
    for _ in range(5):
        counts.append(len(received(world)))
        world.advance(1)

    assert [1, 1, 1, 1, 1] == counts


def test_a_part_of_the_acks_is_sampled(world: World) -> None:
    consume(world, "S", "C", sample_freq="50%")
    publish(world, "S", *("x" for _ in range(197)))
    messages = request(world, "S", "C", batch=200)
    world.send(b"SUB $JS.EVENT.METRIC.CONSUMER.ACK.S.C 5\r\n")
    world.advance(2)
    for message in messages:
        world.publish(message.reply, "+ACK")
    metrics = events(world)

    assert 60 < len(metrics) < 140
    assert {2 * SECOND_NS} == {each["ack_time"] for each in metrics}
    assert 0 == info(world, "S", "C")["num_ack_pending"]
