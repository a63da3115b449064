"""Messages that make other messages, in time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.jetstream.world import START_NS, World

from penstock.protocol import headers
from penstock.protocol.rfc3339 import format_time

TARGET = {"Nats_Schedule_Target": "s.target"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    options = {"allow_msg_schedules": True, "allow_msg_ttl": True, "storage": "file"}
    world.create("S", subjects=["s.>"], **options)
    return world


def at(world: World, seconds: int) -> str:
    return f"@at {format_time(world.now_ns + seconds * 1_000_000_000)}"


def made(world: World) -> list[tuple[bytes, dict[str, str]]]:
    """Return what was made: payloads and headers."""
    messages = world.content("S", b"s.target")
    return [(message[4], dict(headers.decode(message[3]))) for message in messages]


def test_a_message_for_later_takes_the_place_of_its_schedule(world: World) -> None:
    world.ask("s.a", "later", Nats_Schedule=at(world, 10), Other="x", **TARGET)
    world.advance(9)
    assert [] == made(world)

    world.advance(2)

    told = {"Other": "x", "Nats-Scheduler": "s.a", "Nats-Schedule-Next": "purge"}
    assert [(b"later", told)] == made(world)
    assert [(2, "s.target", b"later")] == world.messages("S")


def test_a_schedule_repeats_and_says_when(world: World) -> None:
    world.ask("s.a", "tick", Nats_Schedule="@every 10s", **TARGET)
    for _ in range(25):
        world.advance(1)

    assert [b"tick", b"tick"] == [payload for payload, _ in made(world)]
    following = [told["Nats-Schedule-Next"] for _, told in made(world)]
    assert [format_time(START_NS + s * 1_000_000_000) for s in (20, 30)] == following


def test_a_newer_schedule_of_a_subject_replaces_the_older(world: World) -> None:
    world.ask("s.a", "old", Nats_Schedule=at(world, 5), **TARGET)
    world.ask("s.a", "new", Nats_Schedule=at(world, 10), **TARGET)
    for _ in range(12):
        world.advance(1)

    assert [b"new"] == [payload for payload, _ in made(world)]


def test_a_plain_message_takes_the_schedule_of_its_subject_away(world: World) -> None:
    world.ask("s.a", "old", Nats_Schedule=at(world, 5), **TARGET)
    world.ask("s.a", "plain")
    world.advance(6)

    assert [] == made(world)


def test_a_schedule_that_was_purged_makes_nothing(world: World) -> None:
    world.ask("s.a", "x", Nats_Schedule=at(world, 5), **TARGET)
    world.call("STREAM.PURGE.S", filter="s.a")
    world.advance(6)

    assert [] == made(world)


def test_a_client_can_take_a_schedule_away(world: World) -> None:
    world.ask("s.a", "x", Nats_Schedule="@every 5s", **TARGET)
    told = {"Nats_Scheduler": "s.a", "Nats_Schedule_Next": "purge"}
    assert 2 == world.ask("s.done", "by hand", **told)["seq"]
    world.advance(6)

    assert [(2, "s.done", b"by hand")] == world.messages("S")


def test_what_is_made_can_be_a_copy_of_the_last_message_of_a_subject(world: World) -> None:
    told = {"Nats_Schedule": "@every 5s", "Nats_Schedule_Source": "s.value"} | TARGET
    world.ask("s.a", "nothing yet", **told)
    for second in range(1, 13):
        if second == 7:
            world.ask("s.value", "latest", Unit="C")
        world.advance(1)

    assert [b"nothing yet", b"latest"] == [payload for payload, _ in made(world)]
    assert "C" == made(world)[1][1]["Unit"]


def test_what_is_made_lives_and_rolls_up_as_the_schedule_says(world: World) -> None:
    told = {"Nats_Schedule_TTL": "3s", "Nats_Schedule_Rollup": "sub"}
    world.ask("s.a", "x", Nats_Schedule="@every 2s", **told, **TARGET)
    for _ in range(5):
        world.advance(1)

    ((_, headers_made),) = made(world)
    assert ("3s", "sub") == (headers_made["Nats-TTL"], headers_made["Nats-Rollup"])
    world.call("STREAM.PURGE.S", filter="s.a")
    for _ in range(5):
        world.advance(1)
    assert [] == made(world)


def test_schedules_go_on_after_a_restart(world: World) -> None:
    world.ask("s.a", "tick", Nats_Schedule="@every 10s", **TARGET)
    world.ask("s.b", "once", Nats_Schedule=at(world, 15), **TARGET)
    world.send(b"PUB s.fill 1\r\nx\r\n" * 2500)
    for _ in range(11):
        world.advance(1)
    world.restart()
    for _ in range(10):
        world.advance(1)

    assert [b"tick", b"once", b"tick"] == [payload for payload, _ in made(world)]


def test_what_was_due_meanwhile_is_made_once(world: World) -> None:
    world.ask("s.a", "tick", Nats_Schedule="@every 10s", **TARGET)
    world.ask("s.b", "once", Nats_Schedule=at(world, 15), **TARGET)
    world.now_ns += 1_000_000_000_000
    world.restart()
    for _ in range(12):
        world.advance(1)

    assert [b"once", b"tick"] == [payload for payload, _ in made(world)]


def test_what_can_not_be_stored_is_made_later(world: World) -> None:
    world.ask("s.a", "x", Nats_Schedule=at(world, 5), **TARGET)
    world.disk.is_broken = True
    world.publish("s.b", "y")
    world.settle()
    world.advance(6)
    assert [] == made(world)

    world.disk.is_broken = False
    for _ in range(4):
        world.advance(2)

    assert [b"x"] == [payload for payload, _ in made(world)]


def test_a_transform_holds_for_what_is_made(tmp_path: Path) -> None:
    world = World(tmp_path)
    transform = {"src": "s.target", "dest": "s.renamed"}
    world.create("S", subjects=["s.>"], allow_msg_schedules=True, subject_transform=transform)
    world.ask("s.a", "x", Nats_Schedule=at(world, 5), **TARGET)
    world.advance(6)

    assert [(2, "s.renamed", b"x")] == world.messages("S")
