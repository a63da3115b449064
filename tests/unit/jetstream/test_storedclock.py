"""A clock that was set back before a start stalls nothing: the time goes on from what is stored."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.jetstream.world import SECOND_NS, World

from penstock.jetstream.storedclock import LEAD_NS_MAX, StoredClock

HOUR_S = 3600


class Machine:
    """The time of day."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000 * SECOND_NS

    def clock(self) -> StoredClock:
        return StoredClock(lambda: self.now_ns)


def test_without_a_stored_time_ahead_it_is_the_time_of_day() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.reach(machine.now_ns - SECOND_NS)
    machine.now_ns += SECOND_NS
    assert clock.now_ns() == machine.now_ns


def test_it_goes_on_from_the_latest_stored_time() -> None:
    machine = Machine()
    clock = machine.clock()
    newest_ns = machine.now_ns + HOUR_S * SECOND_NS
    for stored_ns in (newest_ns - 5, newest_ns, newest_ns - 7):
        assert clock.reach(stored_ns)
    assert clock.now_ns() == newest_ns


def test_it_never_goes_back_and_the_time_of_day_catches_up() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.reach(machine.now_ns + HOUR_S * SECOND_NS)
    times = [clock.now_ns()]
    for _ in range(10 * HOUR_S // 60):
        machine.now_ns += 60 * SECOND_NS
        times.append(clock.now_ns())
    assert {after - before for before, after in pairwise(times)} == {54 * SECOND_NS}
    assert times[-1] == machine.now_ns
    machine.now_ns += SECOND_NS
    assert clock.now_ns() == machine.now_ns


def test_a_time_of_more_than_a_day_ahead_is_not_followed() -> None:
    machine = Machine()
    clock = machine.clock()
    assert not clock.reach(machine.now_ns + LEAD_NS_MAX + 1)
    assert clock.now_ns() == machine.now_ns
    assert clock.reach(machine.now_ns + LEAD_NS_MAX)
    assert clock.now_ns() == machine.now_ns + LEAD_NS_MAX


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.create(
        "S",
        subjects=["s"],
        storage="file",
        max_age=3 * SECOND_NS,
        duplicate_window=2 * SECOND_NS,
        allow_msg_ttl=True,
    )
    return world


def set_back_and_restart(world: World) -> None:
    world.now_ns -= HOUR_S * SECOND_NS
    world.restart()


def test_messages_expire_although_the_clock_was_set_back_before_the_start(world: World) -> None:
    world.ask("s", "old")
    set_back_and_restart(world)
    world.ask("s", "new")
    world.ask("s", "short", Nats_TTL="1")
    assert [b"old", b"new", b"short"] == [each[2] for each in world.messages("S")]
    world.advance(1.2)
    assert [b"old", b"new"] == [each[2] for each in world.messages("S")]
    for _ in range(3):
        world.advance(1)
    assert world.messages("S") == []


def test_ids_are_forgotten_although_the_clock_was_set_back_before_the_start(world: World) -> None:
    world.ask("s", Nats_Msg_Id="one")
    set_back_and_restart(world)
    assert world.ask("s", Nats_Msg_Id="one").get("duplicate")
    world.ask("s", Nats_Msg_Id="two")
    world.advance(2.3)
    for message_id in ("one", "two"):
        assert not world.ask("s", Nats_Msg_Id=message_id).get("duplicate")


def test_a_message_is_redelivered_although_the_clock_was_set_back_before_the_start(
    world: World,
) -> None:
    world.create("W", subjects=["w"], storage="file")
    config = {"durable_name": "C", "ack_policy": "explicit", "ack_wait": SECOND_NS}
    world.call("CONSUMER.DURABLE.CREATE.W.C", stream_name="W", config=config)
    world.ask("w", "1")
    # The delivery is the latest that is stored: no message says that it was ever so late.
    world.advance(1800)
    world.ask("$JS.API.CONSUMER.MSG.NEXT.W.C", '{"batch":1,"no_wait":true}')
    world.advance(0.1)
    set_back_and_restart(world)
    world.publish("$JS.API.CONSUMER.MSG.NEXT.W.C", '{"batch":1}', reply="_INBOX.next")
    world.advance(0.5)
    assert world.received() == []
    world.advance(0.7)
    assert len(world.received()) == 1


def test_the_time_of_another_clock_in_a_mirror_is_not_followed(world: World) -> None:
    world.create("M", mirror={"name": "S"}, storage="file")
    world.ask("s")
    world.advance(0.1)
    assert world.state("M")["messages"] == 1
    world.call("STREAM.DELETE.S")
    set_back_and_restart(world)
    assert world.shared.clock_ns() == world.now_ns


def test_messages_of_more_than_a_day_ahead_are_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.ask("s")
    world.now_ns -= LEAD_NS_MAX
    set_back_and_restart(world)
    assert world.shared.clock_ns() == world.now_ns
    assert "Stream '$G > S' has messages of more than a day ahead" in caplog.text
