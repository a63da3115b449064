"""Priority groups; what clients are told is in the transcripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.jetstream.consuming import Received, consume, info, operations, received
from tests.unit.jetstream.world import SECOND_NS, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create("S")
    world.send(b"SUB one 11\r\nSUB two 12\r\n")
    return world


def ask(world: World, inbox: str, **wish: Any) -> None:
    wish = {"batch": 1, "group": "g"} | wish
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", json.dumps(wish), reply=inbox)


def store(world: World, *payloads: str) -> None:
    for payload in payloads:
        world.publish("S", payload)


def by_inbox(world: World) -> dict[str, list[str]]:
    """Return the payloads that came to each inbox."""
    for _ in range(20):
        world.shared.timers.run(world.now_ns)
        world.settle()
    found: dict[str, list[str]] = {"one": [], "two": []}
    for _, _, sid, _, header_bytes, data in operations(world):
        found[{b"11": "one", b"12": "two"}[sid]].append(data[header_bytes:].decode())
    return found


def policy(world: World, name: str, **config: Any) -> None:
    consume(world, "S", "C", priority_policy=name, priority_groups=["g"], **config)


def test_the_pin_passes_on_when_its_client_is_silent_for_too_long(world: World) -> None:
    policy(world, "pinned_client", priority_timeout=2 * SECOND_NS)
    ask(world, "one")
    ask(world, "two", batch=9)
    store(world, "a")
    first = by_inbox(world)
    store(world, "b")
    second = by_inbox(world)
    pin = info(world, "S", "C")["priority_groups"][0]
    world.advance(2.1)
    third = by_inbox(world)

    assert [{"one": ["a"], "two": []}, {"one": [], "two": []}] == [first, second]
    assert {"one": [], "two": ["b"]} == third
    assert (
        pin["pinned_client_id"] != info(world, "S", "C")["priority_groups"][0]["pinned_client_id"]
    )


def test_the_pinned_client_keeps_its_pin_by_asking(world: World) -> None:
    policy(world, "pinned_client", priority_timeout=2 * SECOND_NS)
    ask(world, "one")
    ask(world, "two", batch=9)
    store(world, "a")
    by_inbox(world)
    pin = info(world, "S", "C")["priority_groups"][0]["pinned_client_id"]
    for _ in range(4):
        world.advance(1.5)
        ask(world, "one", id=pin)
        store(world, "x")
        assert {"one": ["x"], "two": []} == by_inbox(world)


def test_what_is_sent_to_the_pinned_client_in_one_go_carries_the_pin_like_the_rest(
    world: World,
) -> None:
    policy(world, "pinned_client")
    ask(world, "one")
    store(world, "a")
    by_inbox(world)
    pin = info(world, "S", "C")["priority_groups"][0]["pinned_client_id"]
    world.publish("S", "b", k="v")
    store(world, "c", "d")
    ask(world, "one", batch=9, id=pin)  # alone: all in one go
    together = _blocks(world)
    ask(world, "two", batch=9)
    world.publish("S", "b", k="v")
    store(world, "c", "d")  # beside one that is not pinned: one by one
    apart = _blocks(world)

    line = f"Nats-Pin-Id: {pin}\r\n\r\n".encode()
    assert [b"NATS/1.0\r\nk: v\r\n" + line, *[b"NATS/1.0\r\n" + line] * 2] == together == apart


def _blocks(world: World) -> list[bytes]:
    """Return the headers of all that came to the pinned client."""
    for _ in range(20):
        world.shared.timers.run(world.now_ns)
        world.settle()
    return [data[:size] for _, _, sid, _, size, data in operations(world) if sid == b"11"]


def test_an_overflow_request_takes_part_while_enough_is_pending(world: World) -> None:
    policy(world, "overflow")
    ask(world, "one", batch=9, min_pending=3)
    store(world, "a", "b")
    before = by_inbox(world)
    store(world, "c", "d")

    assert {"one": [], "two": []} == before
    assert {"one": ["a", "b"], "two": []} == by_inbox(world)


def test_an_overflow_request_takes_part_while_enough_waits_for_acks(world: World) -> None:
    policy(world, "overflow", ack_wait=SECOND_NS)
    ask(world, "two", batch=2)
    ask(world, "one", batch=9, min_ack_pending=2)
    store(world, "a", "b", "c")
    new = by_inbox(world)
    world.advance(1.1)

    assert {"one": ["c"], "two": ["a", "b"]} == new
    assert {"one": ["a", "b", "c"], "two": []} == by_inbox(world)


def test_smaller_numbers_go_first_and_equal_ones_in_turn(world: World) -> None:
    policy(world, "prioritized")
    ask(world, "one", batch=2, priority=5)
    ask(world, "two", batch=2, priority=1)
    ask(world, "one", batch=1, priority=1)
    world.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", "1", reply="two")
    store(world, "a", "b", "c", "d", "e", "f")

    assert {"one": ["b", "d", "e"], "two": ["a", "c", "f"]} == by_inbox(world)


def test_a_policy_may_be_taken_back(world: World) -> None:
    policy(world, "pinned_client")
    ask(world, "one")
    store(world, "a")
    by_inbox(world)
    ask(world, "two")
    store(world, "b")
    waiting = by_inbox(world)
    config = {"durable_name": "C", "ack_policy": "explicit"}
    world.publish("$JS.API.CONSUMER.CREATE.S.C", json.dumps({"stream_name": "S", "config": config}))

    assert {"one": [], "two": []} == waiting
    assert {"one": [], "two": ["b"]} == by_inbox(world)


def test_heartbeats_and_time_outs_reach_those_who_are_not_served(world: World) -> None:
    policy(world, "overflow")
    ask(world, "one", min_pending=9, expires=3 * SECOND_NS, idle_heartbeat=SECOND_NS)
    store(world, "a")
    world.advance(1.1)
    beats = received(world)
    world.advance(2)

    assert ["100 Idle Heartbeat"] == statuses(beats)
    assert "408 Request Timeout" in statuses(received(world))


def statuses(messages: list[Received]) -> list[str]:
    return [message.status for message in messages if message.status]
