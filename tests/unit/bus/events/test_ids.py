"""Ids of events: of their own, and in order."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from penstock.bus.events.ids import EventIds, new_event_id


def test_ids_are_uuids_of_version_7_that_tell_the_time() -> None:
    before = datetime.now(UTC)
    value = uuid.UUID(new_event_id())
    made = datetime.fromtimestamp((value.int >> 80) / 1e3, UTC)

    assert (7, uuid.RFC_4122) == (value.version, value.variant)
    assert before - timedelta(milliseconds=1) <= made <= before + timedelta(seconds=5)


def test_ids_increase_even_when_the_clock_stands_still_or_goes_back() -> None:
    times = iter([5_000_000] * 5000 + [4_000_000] * 10)
    ids = EventIds(clock_ns=lambda: next(times))

    made = [ids() for _ in range(5010)]

    assert made == sorted(set(made))
