"""
The event bus as it is deployed, and a witness who has written everything down.

Publishers with journals of their own; services that were there before, come during and
come after; standbys; rolling updates in both orders; handlers and topics that releases
add and leave out; handlers that fail, hang and are slow. Members, publishers and the
server are killed and frozen. In the end nothing is lost, no aggregate was reordered,
nothing came twice but what was in flight in a process that died, and every event that
cannot be handled is a dead letter.

LEDGER_SECONDS=3600 makes the long form of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest
from tests.aio import until
from tests.faults.bus_member import POISON, config
from tests.faults.bus_writer import KEYS, written
from tests.servers import NATS_SERVER, PENSTOCK, Program, ServerProcess

from penstock.bus import EventBus
from penstock.bus.deadletters.stored import DeadLetterBox

SECONDS = float(os.environ.get("LEDGER_SECONDS", "0"))
TOPICS = ("load.a", "load.b", "load.plain", "load.late")
RELEASES = (TOPICS[:3], TOPICS[1:], TOPICS[:2], ("load.*",), TOPICS)
"""What each release of the service handles that is updated; the last one everything."""
STEADY, ROLLED = TOPICS[:2], TOPICS[1:3]
SERVICES = {"steady": STEADY, "rolled": ROLLED, "work": TOPICS, "late": TOPICS}
IN_FLIGHT_MAX = 300
DRAIN_S = 240.0


class Process:
    """A program of ours that is killed, frozen and stopped."""

    def __init__(self, module: str, *arguments: str, log: Path, member: str = "") -> None:
        self._output = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"tests.faults.{module}", *arguments],
                stdout=output,
                stderr=output,
                env={**os.environ, "MEMBER": member},
            )

    @property
    def is_ready(self) -> bool:
        return self.process.poll() is None and "ready" in self._output.read_text()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.send(signal.SIGCONT)
        self.process.wait()

    def stop(self) -> None:
        self.send(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0, self._output.read_text()[-3000:]


class Ledger:
    """What everybody did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> Iterator[tuple[int, str, str, str, str, int]]:
        """Yield when, what, which service, which topic, key and number."""
        for place, line in enumerate(self.path.read_text().splitlines()):
            kind, member, topic, key, number = line.split()
            yield place, kind, member.partition("#")[0], topic, key, int(number)

    def check(self, service: str, topic: str, count: int, buried: set[int]) -> None:
        """See that a service has handled all of a topic, each aggregate in order."""
        started: dict[int, int] = {}
        done: dict[int, int] = {}
        for place, kind, who, where, _, number in self.lines():
            if who == service and where == topic:
                (started if kind == "start" else done).setdefault(number, place)
        missing = set(range(count)) - set(done) - buried
        assert not missing, (service, topic, sorted(missing)[:20], len(missing))
        for number in range(KEYS, count):
            before = number - KEYS
            finished = started[before] if before in buried else done[before]
            assert finished < started[number], (service, topic, before, number)

    def repeated(self, service: str) -> int:
        """Return how many times an event was handled again."""
        done = Counter(
            (where, number)
            for _, kind, who, where, _, number in self.lines()
            if kind == "done" and who == service
        )
        return sum(count - 1 for count in done.values())


class Field:
    """The server, and everybody who uses it."""

    def __init__(self, server: ServerProcess, directory: Path, dice: random.Random) -> None:
        self.server = server
        self.directory = directory
        self.dice = dice
        self.namespace = "ledger"
        self.ledger = Ledger(directory / "ledger")
        self.members: defaultdict[str, list[Process]] = defaultdict(list)
        self.writers: dict[str, Process] = {}
        self.deaths: Counter[str] = Counter()
        self.release = 0
        self._count = 0

    def member(self, service: str, topics: tuple[str, ...]) -> Process:
        """Start a process of a service."""
        self._count += 1
        name = f"{service}#{self._count}"
        member = Process(
            "bus_member",
            *(self.server.url, self.namespace, service, json.dumps(topics)),
            str(self.ledger.path),
            log=self.directory / name,
            member=name,
        )
        self.members[service].append(member)
        return member

    def write(self, topic: str) -> None:
        """Start the publisher of a topic, or its successor."""
        self.writers[topic] = Process(
            "bus_writer",
            *(self.server.url, self.namespace, topic, str(self.journal(topic))),
            log=self.directory / f"writer-{topic}",
        )

    def journal(self, topic: str) -> Path:
        return self.directory / f"journal-{topic}"

    def count(self, topic: str) -> int:
        return written(self.journal(topic))

    def all_stopped(self) -> None:
        for member in chain(*self.members.values(), self.writers.values()):
            member.kill()

    # What happens.

    async def kill_member(self) -> None:
        self.deaths["work"] += 1
        victim = self.members["work"].pop(self.dice.randrange(2))
        victim.kill()
        self.member("work", RELEASES[self.release])

    async def freeze_member(self) -> None:
        self.deaths["work"] += 1
        victim = self.dice.choice(self.members["work"])
        victim.send(signal.SIGSTOP)
        await asyncio.sleep(4.5)  # as long as it takes to be taken for dead, and on
        victim.send(signal.SIGCONT)

    async def update_overlapping(self) -> None:
        await self._update(lambda old: None, lambda old: old.stop())
        self.member("rolled", ROLLED)
        await until(lambda: self.members["rolled"][-1].is_ready, 60)
        await asyncio.sleep(0.5)  # both are up, as they are for a while
        await asyncio.to_thread(self.members["rolled"].pop(0).stop)

    async def update_one_after_another(self) -> None:
        await self._update(lambda old: old.stop(), lambda old: None)

    async def _update(
        self, before: Callable[[Process], None], after: Callable[[Process], None]
    ) -> None:
        self.release = (self.release + 1) % len(RELEASES)
        for old in list(self.members["work"]):
            self.members["work"].remove(old)
            await until(lambda: old.is_ready, 60)  # noqa: B023
            await asyncio.to_thread(before, old)
            new = self.member("work", RELEASES[self.release])
            await until(lambda: new.is_ready, 60)  # noqa: B023
            await asyncio.to_thread(after, old)

    async def kill_server(self) -> None:
        self.server.process.kill()
        await asyncio.to_thread(self.server.start_again)

    async def freeze_server(self) -> None:
        self.server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.dice.uniform(0.5, 2.0))
        self.server.process.send_signal(signal.SIGCONT)

    async def kill_writer(self) -> None:
        topic = self.dice.choice(list(self.writers))
        self.writers[topic].kill()
        self.write(topic)

    @property
    def happenings(self) -> list[Callable[[], object]]:
        return [
            self.kill_member,
            self.freeze_member,
            self.update_overlapping,
            self.update_one_after_another,
            self.kill_server,
            self.freeze_server,
            self.kill_writer,
        ]


@contextmanager
def field_of(program: Program, directory: Path) -> Iterator[Field]:
    seed = int(os.environ.get("LEDGER_SEED", time.time_ns()))
    print("LEDGER_SEED", seed)
    with ServerProcess(program, "jetstream { store_dir: store }") as server:
        field = Field(server, directory, random.Random(seed))
        try:
            yield field
        finally:
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGCONT)
            field.all_stopped()


async def live_through(field: Field) -> None:
    """Publish while all kinds of things happen, in any order; then until all is handled."""
    field.member("steady", STEADY)
    field.member("rolled", ROLLED)
    for _ in range(2):
        field.member("work", RELEASES[0])
    for topic in TOPICS[:3]:
        field.write(topic)
    await until(lambda: all(field.count(topic) for topic in TOPICS[:3]), 60)
    field.write(TOPICS[3])  # a topic that nobody knew of
    deadline_s = time.monotonic() + SECONDS
    while True:
        for happening in field.dice.sample(field.happenings, len(field.happenings)):
            print(f"{time.strftime('%H:%M:%S')} {happening.__name__}")
            await happening()  # type: ignore[misc]
            await asyncio.sleep(0.3)
        if time.monotonic() >= deadline_s:
            break
    field.release = len(RELEASES) - 2
    await field.update_overlapping()
    for writer in field.writers.values():
        await asyncio.to_thread(writer.stop)
    field.member("late", TOPICS)


async def drained(field: Field) -> dict[tuple[str, str], set[int]]:
    """Wait until every service has nothing before it; return what it gave up, by topic."""
    buried: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    async with EventBus(config(field.server.url, field.namespace, "looking")) as bus:
        deadline_s = time.monotonic() + DRAIN_S
        expected = sum(field.count(topic) for topic in TOPICS) * 2
        expected += sum(field.count(topic) for topic in (*STEADY, *ROLLED))
        while time.monotonic() < deadline_s:
            buried.clear()
            async for letter in DeadLetterBox(bus).find():
                assert letter.envelope is not None
                buried[letter.service, letter.topic].add(letter.envelope.payload)
            done = {
                (who, where, number)
                for _, kind, who, where, _, number in field.ledger.lines()
                if kind == "done"
            }
            gone = {(who, where, one) for (who, where), all in buried.items() for one in all}
            if len(done | gone) >= expected:
                break
            await asyncio.sleep(0.3)
    return buried


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("program", [NATS_SERVER, PENSTOCK], ids=lambda program: program.name)
def test_every_service_gets_every_event_once_and_in_order(program: Program, tmp_path: Path) -> None:
    with field_of(program, tmp_path) as field:
        asyncio.run(live_through(field))
        buried = asyncio.run(drained(field))
        counts = {topic: field.count(topic) for topic in TOPICS}
        assert all(counts.values())
        for service, topics in SERVICES.items():
            for topic in topics:
                field.ledger.check(service, topic, counts[topic], buried[service, topic])
                poison = set(range(0, counts[topic], POISON))
                assert poison <= buried[service, topic]
        # Nobody killed these, only updated one: nothing came twice.
        assert [field.ledger.repeated(one) for one in ("steady", "rolled", "late")] == [0, 0, 0]
        assert field.ledger.repeated("work") <= field.deaths["work"] * IN_FLIGHT_MAX
        for member in chain(*field.members.values()):
            member.stop()
