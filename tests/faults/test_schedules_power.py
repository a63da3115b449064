"""
What a schedule is to make is made once, whenever the power goes.

The rounds are those of `test_jetstream_power`, with a stream of schedules: some for a
time, some again and again, some taken back. A schedule that was acknowledged is there
until what it makes is there, and never both.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
from tests.faults.test_jetstream_power import CUTS, History
from tests.unit.jetstream.world import BIG

from penstock.protocol import headers
from penstock.protocol.rfc3339 import format_time
from penstock.protocol.times import SECOND_NS

pytestmark = pytest.mark.usefixtures("each_encryption")

ROUNDS = int(os.environ.get("POWER_ROUNDS", "400")) // 2
LATEST_S = 20


class ScheduleHistory(History):
    """One client with schedules."""

    def make_streams(self) -> None:
        self.scheduled = 0
        self.acked: set[str] = set()
        """Schedules for one time that were acknowledged, and not taken back."""
        self.create(
            "T", subjects=["t.>"], storage="file", allow_msg_schedules=True, compression="s2"
        )
        told = {"Nats_Schedule": "@every 3s", "Nats_Schedule_Target": "t.tick"}
        assert "error" not in self.ask("t.every", "tick", **told)

    def steps(self) -> list[Callable[[], None]]:
        return [self.schedule] * 4 + [self.commit] * 6 + [self.wait] * 3 + [self.keep_house]

    def publish_some(self) -> None:
        self.schedule()

    def schedule(self) -> None:
        """Have something made at a time, which may be long past by then."""
        for _ in range(self.random.randint(1, 3)):
            self.scheduled += 1
            name = str(self.scheduled)
            due_ns = self.now_ns + self.random.randint(-2, LATEST_S) * SECOND_NS
            told = {"Nats_Schedule": f"@at {format_time(due_ns)}"}
            told["Nats_Schedule_Target"] = f"t.made.{name}"
            self.publish(f"t.at.{name}", name, reply=f"_INBOX.schedule.{name}", **told)

    def wait(self) -> None:
        self.now_ns += self.random.randint(1, 4) * SECOND_NS
        self.shared.timers.run(self.now_ns)

    def take_answers(self) -> None:
        for operation in self.operations():
            subject, payload = operation[1], operation[5]
            _, _, name = subject.decode().rpartition(".")
            if b'"error"' in payload:
                assert self.disk.fault_rate, payload
            else:
                self.acked.add(name)

    def check(self) -> None:
        """See that each is there once: as it was asked for, or as it was made."""
        messages = [subject.split(".") for _, subject, _ in self.messages("T")]
        seen = Counter(name for _, kind, *rest in messages if kind != "tick" for name in rest)
        assert not [name for name, count in seen.items() if count > 1], seen
        assert self.acked <= seen.keys(), self.acked - seen.keys()
        self.check_ticks()

    def check_ticks(self) -> None:
        """See that what repeats is made once for each time it is due."""
        found = self.content("T", b"t.tick")
        following = [headers.get(each[3], b"Nats-Schedule-Next") for each in found]
        assert len(following) == len(set(following)), following


@pytest.mark.parametrize("first_seed", range(0, ROUNDS, 100))
def test_a_schedule_makes_one_message_whenever_the_power_goes(first_seed: int) -> None:
    for seed in range(first_seed, min(first_seed + 100, ROUNDS)):
        history = ScheduleHistory(seed)
        for _ in range(CUTS):
            history.live()
        history.disk.operations_left = BIG
        for _ in range(LATEST_S + 10):
            history.advance(1)
        history.take_answers()
        history.check()
        left = [subject for _, subject, _ in history.messages("T") if subject[:4] == "t.at"]
        assert left == []
        ticks = [subject for _, subject, _ in history.messages("T") if subject == "t.tick"]
        assert len(ticks) >= LATEST_S // 3
