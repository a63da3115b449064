"""Schedules and deadlines that are read back from a disk which cannot be read for a while."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simdisk import SimDisk
from tests.unit.jetstream.world import SECOND_NS, START_NS, World

from penstock.protocol.rfc3339 import format_time

pytestmark = pytest.mark.usefixtures("each_encryption")

FILL = 2500
"""More messages than are read at once."""


def killed(options: dict[str, bool], **told: str) -> World:
    """Return a server that was killed after the last of many messages, and is up again."""
    world = World(Path("store"), disk=SimDisk())
    world.create("S", subjects=["s.>"], storage="file", **options)
    world.send(b"PUB s.fill 1\r\nx\r\n" * FILL)
    assert world.ask("s.last", "last", **told)["seq"] == FILL + 1
    world._start()
    return world


def be_unreadable_for_a_while(world: World) -> None:
    world.disk.read_fault_rate = 1.0
    for _ in range(3):
        world.advance(1)
    world.disk.read_fault_rate = 0.0
    for _ in range(20):
        world.advance(1)


def test_schedules_go_on_once_they_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock")
    told = {"Nats_Schedule": "@every 5s", "Nats_Schedule_Target": "s.made"}
    world = killed({"allow_msg_schedules": True}, **told)

    be_unreadable_for_a_while(world)

    assert len([s for _, s, _ in world.messages("S") if s == "s.made"]) >= 2
    told_in_log = [each.getMessage() for each in caplog.records if "schedules" in each.getMessage()]
    assert len(told_in_log) == 2
    assert "cannot be read back from message 1001 on, will try again" in told_in_log[0]


def test_a_schedule_is_made_once_though_a_failure_comes_while_it_is_read_back() -> None:
    due = format_time(START_NS + 5 * SECOND_NS)
    told = {"Nats_Schedule": f"@at {due}", "Nats_Schedule_Target": "s.made"}
    world = killed({"allow_msg_schedules": True}, **told)
    world.engine.streams["S"].intake.schedules.go_back()

    be_unreadable_for_a_while(world)

    assert [s for _, s, _ in world.messages("S") if s != "s.fill"] == ["s.made"]


def test_messages_expire_once_they_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    world = killed({"allow_msg_ttl": True}, Nats_TTL="5s")

    be_unreadable_for_a_while(world)

    assert [s for _, s, _ in world.messages("S") if s == "s.last"] == []
    assert "deadlines cannot be read back" in caplog.text
