"""
The event bus as it is deployed, and a witness who has written everything down.

Publishers with journals of their own; services that were there before, come during and
come after; a service of one to eight members that join, leave, are killed and frozen;
rolling updates in both orders; handlers and topics that releases add and leave out;
handlers that fail, panic, hang and are slow. Publishers and the broker are killed and
frozen. In the end nothing is lost, no aggregate was reordered, nothing came twice but what
was in flight in a process that died, and every event that cannot be handled is a dead letter.

What was published again is stored once on NATS. Kafka stores it again, and each of these
is handled once; see ordering.md for what else it repeats.

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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.aio import until
from tests.faults.bus_brokers import BROKERS, Broker, broker_of
from tests.faults.bus_member import IN_FLIGHT_MAX, POISON, config
from tests.faults.bus_writer import BATCH, KEYS, written

from penstock.bus import EventBus
from penstock.bus.deadletters.stored import DeadLetterBox

SECONDS = float(os.environ.get("LEDGER_SECONDS", "0"))
RATE_PER_S = min(120.0, 72_000 / (SECONDS or 1.0))
"""Events of each topic; an hour has as many as ten minutes, so that they can be counted."""
TOPICS = ("load.a", "load.b", "load.plain", "load.late")
RELEASES = (TOPICS[:3], TOPICS[1:], TOPICS[:2], ("load.*",), TOPICS)
"""What each release of the service handles that is updated; the last one everything."""
STEADY, ROLLED, CREW = TOPICS[:2], TOPICS[1:3], TOPICS[:3]
SERVICES = {"steady": STEADY, "rolled": ROLLED, "work": TOPICS, "crew": CREW}
SERVICES |= {"during": TOPICS, "late": TOPICS}
CREW_MAX = 8
DAYS_S = 2 * 86400.0
SILENT_S = 120.0
"""How long nothing may happen while there is something to do."""


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


class Verdict(NamedTuple):
    """What came of it, of one service or all."""

    events: int = 0
    lost: int = 0
    disordered: int = 0
    repeated: int = 0

    def __add__(self, other: Verdict) -> Verdict:  # type: ignore[override]
        return Verdict(*(one + another for one, another in zip(self, other, strict=True)))


class Ledger:
    """What everybody did: of each event of each service when it was begun and done first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self.places = 0
        self.started: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        self.done: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        self.times: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        self._read_bytes = 0

    def read(self) -> bool:
        """Take in what was added; tell whether something was."""
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            lines = file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        for line in lines:
            self._read_bytes += len(line)
            self._take(*line.decode().split())
        return bool(lines)

    def _take(self, kind: str, member: str, topic: str, key: str, number: str) -> None:
        place = member.partition("#")[0], topic
        self.places += 1
        (self.started if kind == "start" else self.done)[place].setdefault(int(number), self.places)
        if kind == "done":
            self.times[place][int(number)] += 1

    def missing(self, place: tuple[str, str], count: int, buried: set[int]) -> set[int]:
        """Return what a service has not handled of a topic."""
        return set(range(count)) - self.done[place].keys() - buried

    def judge(
        self, place: tuple[str, str], count: int, buried: set[int], stored: Counter[int]
    ) -> Verdict:
        """See whether a service has handled all of a topic, each aggregate in order."""
        started, done = self.started[place], self.done[place]
        finished = {number: started.get(number, self.places) for number in buried} | done
        disordered = [
            number
            for number in range(KEYS, count)
            if number in started and finished.get(number - KEYS, self.places) > started[number]
        ]
        missing = self.missing(place, count, buried)
        again = self.times[place] - stored
        if missing or disordered or again:
            print(place, "lost", sorted(missing)[:20], "disordered", disordered[:20])
            print("again", sorted(again)[:50])
        return Verdict(count, len(missing), len(disordered), again.total())


class Field:
    """The broker, and everybody who uses it."""

    def __init__(self, broker: Broker, directory: Path, dice: random.Random) -> None:
        self.broker = broker
        self.directory = directory
        self.dice = dice
        self.namespace = "ledger"
        self.ledger = Ledger(directory / "ledger")
        self.members: defaultdict[str, list[Process]] = defaultdict(list)
        self.writers: dict[str, Process] = {}
        self.deaths: Counter[str] = Counter()
        self.release = 0
        self.declared = False
        self._count = 0

    def member(self, service: str, topics: tuple[str, ...]) -> Process:
        """Start a process of a service."""
        self._count += 1
        name = f"{service}#{self._count}"
        member = Process(
            "bus_member",
            *(self.broker.url, self.namespace, service, json.dumps(topics)),
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
            *(self.broker.url, self.namespace, topic, str(self.journal(topic))),
            str(RATE_PER_S),
            log=self.directory / f"writer-{topic}",
        )

    def journal(self, topic: str) -> Path:
        return self.directory / f"journal-{topic}"

    def count(self, topic: str) -> int:
        return written(self.journal(topic))

    def places(self) -> list[tuple[tuple[str, str], int]]:
        """Return each topic of each service, and how many events it has."""
        return [
            ((service, topic), self.count(topic))
            for service, topics in SERVICES.items()
            for topic in topics
        ]

    @property
    def work_repeats_max(self) -> int:
        """How much may come twice to the service whose processes are killed and frozen."""
        if self.broker.deduplicates:
            return self.deaths["work"] * IN_FLIGHT_MAX
        # Of each partition, also when the broker was away for longer than its session.
        return (self.deaths["work"] + self.deaths["broker"]) * IN_FLIGHT_MAX * len(TOPICS)

    @property
    def crew_repeats_max(self) -> int:
        """How much may come twice to the service of many members."""
        deaths = self.deaths["crew"] + (0 if self.broker.deduplicates else self.deaths["broker"])
        moves = 0 if self.broker.deduplicates else self.deaths["moves"]
        return (deaths + moves) * IN_FLIGHT_MAX * (1 if self.broker.deduplicates else len(CREW))

    @property
    def rolled_repeats_max(self) -> int:
        """How much may come twice to a service whose processes are replaced in good order."""
        if self.broker.deduplicates:
            return 0
        # Of a partition whose first event waits for another attempt just then.
        return self.deaths["update"] * IN_FLIGHT_MAX * len(ROLLED)

    @property
    def stored_again_max(self) -> int:
        """How much may be stored twice because a publisher died before it wrote it down."""
        if self.broker.deduplicates:
            # Two streams have not the same memory; that is once, when the topic moves.
            return BATCH if self.declared else 0
        return self.deaths["writer"] * BATCH

    def all_stopped(self) -> None:
        for member in chain(*self.members.values(), self.writers.values()):
            member.kill()

    # What happens.

    async def begin_service(self) -> None:
        """Have a new service read what is stored while more is published."""
        if not self.members["during"]:
            self.member("during", TOPICS)

    async def kill_member(self) -> None:
        self.deaths["work"] += 1
        victim = self.members["work"].pop(self.dice.randrange(2))
        victim.kill()
        self.member("work", RELEASES[self.release])

    async def freeze_member(self) -> None:
        self.deaths["work"] += 1
        victim = self.dice.choice(self.members["work"])
        victim.send(signal.SIGSTOP)
        await asyncio.sleep(self.broker.freeze_s)  # it is taken for dead, and wakes up
        victim.send(signal.SIGCONT)

    async def join_crew(self) -> None:
        """Have more members, as many as there may be."""
        self.deaths["moves"] += 1
        for _ in range(self.dice.randint(1, CREW_MAX)):
            if len(self.members["crew"]) < CREW_MAX:
                self.member("crew", CREW)

    async def leave_crew(self) -> None:
        """Have fewer members, at least one."""
        self.deaths["moves"] += 1
        for _ in range(self.dice.randint(1, CREW_MAX)):
            if len(self.members["crew"]) > 1:
                leaving = self.members["crew"].pop(self.dice.randrange(len(self.members["crew"])))
                await until(lambda: leaving.is_ready, 60)  # noqa: B023
                await asyncio.to_thread(leaving.stop)

    async def kill_crew(self) -> None:
        """Kill the oldest, which leads, or another."""
        self.deaths["crew"] += 1
        crew = self.members["crew"]
        crew.pop(self.dice.choice((0, self.dice.randrange(len(crew))))).kill()
        self.member("crew", CREW)

    async def freeze_crew(self) -> None:
        """Stop the oldest, which leads, or another, until it is taken for dead."""
        self.deaths["crew"] += 1
        crew = self.members["crew"]
        victim = crew[self.dice.choice((0, self.dice.randrange(len(crew))))]
        await until(lambda: victim.is_ready, 60)
        victim.send(signal.SIGSTOP)
        await asyncio.sleep(self.broker.freeze_s)
        victim.send(signal.SIGCONT)

    async def update_overlapping(self) -> None:
        await self._update(lambda old: None, lambda old: old.stop())
        self.deaths["update"] += 1
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

    async def kill_broker(self) -> None:
        self.deaths["broker"] += 1
        await self.broker.kill()

    async def update_in_an_outage(self) -> None:
        await asyncio.gather(self.kill_broker(), self.update_overlapping())

    async def freeze_broker(self) -> None:
        await self.broker.freeze()

    async def kill_writer(self) -> None:
        self.deaths["writer"] += 1
        topic = self.dice.choice(list(self.writers))
        self.writers[topic].kill()
        self.write(topic)

    async def freeze_writer(self) -> None:
        victim = self.dice.choice(list(self.writers.values()))
        victim.send(signal.SIGSTOP)
        await asyncio.sleep(self.dice.uniform(0.5, 3.0))
        victim.send(signal.SIGCONT)

    async def declare_topic(self) -> None:
        """Give a topic a stream of its own, or another limit, while everybody uses it."""
        self.declared = True
        async with EventBus(config(self.broker.url, self.namespace, "operator")) as bus:
            await bus.configure_topic(TOPICS[1], retention=DAYS_S)

    @property
    def happenings(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.begin_service,
            self.kill_member,
            self.freeze_member,
            self.join_crew,
            self.leave_crew,
            self.kill_crew,
            self.freeze_crew,
            self.update_overlapping,
            self.update_one_after_another,
            self.kill_broker,
            self.freeze_broker,
            self.kill_writer,
            self.freeze_writer,
            self.declare_topic,
            # Kafka takes longer to start than a process may take to stop.
            *([self.update_in_an_outage] if self.broker.deduplicates else []),
        ]


@contextmanager
def field_of(name: str, directory: Path) -> Iterator[Field]:
    seed = int(os.environ.get("LEDGER_SEED", time.time_ns()))
    print("LEDGER_SEED", seed)
    dice = random.Random(seed)
    with broker_of(name, directory, dice) as broker:
        field = Field(broker, directory, dice)
        try:
            yield field
        finally:
            field.all_stopped()


async def live_through(field: Field) -> None:
    """Publish while all kinds of things happen, in any order; then until all is handled."""
    field.member("steady", STEADY)
    field.member("rolled", ROLLED)
    for _ in range(2):
        field.member("work", RELEASES[0])
        field.member("crew", CREW)
    for topic in TOPICS[:3]:
        field.write(topic)
    await until(lambda: all(field.count(topic) for topic in TOPICS[:3]), 60)
    field.write(TOPICS[3])  # a topic that nobody knew of
    deadline_s = time.monotonic() + SECONDS
    while True:
        for happening in field.dice.sample(field.happenings, len(field.happenings)):
            print(f"{time.strftime('%H:%M:%S')} {happening.__name__}")
            await happening()
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
    ledger = field.ledger
    async with EventBus(config(field.broker.url, field.namespace, "looking")) as bus:
        heard_s = time.monotonic()
        while True:
            if ledger.read():
                heard_s = time.monotonic()
            buried = await dead_letters(bus)
            missing = [
                (place, left)
                for place, count in field.places()
                if (left := ledger.missing(place, count, buried[place]))
            ]
            if not missing or time.monotonic() - heard_s > SILENT_S:
                return buried
            await asyncio.sleep(0.5)


async def dead_letters(bus: EventBus) -> dict[tuple[str, str], set[int]]:
    """Return what each service gave up of each topic."""
    buried: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    async for letter in DeadLetterBox(bus).find():
        assert letter.envelope is not None
        buried[letter.service, letter.topic].add(letter.envelope.payload)
    return buried


async def copies(field: Field) -> dict[str, Counter[int]]:
    """Return how many times each event of each topic is stored."""
    stored: dict[str, Counter[int]] = {}
    async with EventBus(config(field.broker.url, field.namespace, "counting")) as bus:
        for topic in TOPICS:
            stored[topic] = Counter()
            async for _, envelope in bus.replay(topic):
                stored[topic][envelope.payload] += 1
    return stored


def judged(
    field: Field, buried: dict[tuple[str, str], set[int]], stored: dict[str, Counter[int]]
) -> dict[str, Verdict]:
    """Return what is to be said of each service, and say it."""
    verdicts: defaultdict[str, Verdict] = defaultdict(Verdict)
    for place, count in field.places():
        service, topic = place
        verdicts[service] += field.ledger.judge(place, count, buried[place], stored[topic])
    print(dict(field.deaths), "happened")
    for service, verdict in verdicts.items():
        print(service, verdict)
    return verdicts


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2 + 600)
@pytest.mark.parametrize("name", BROKERS)
def test_every_service_gets_every_event_once_and_in_order(name: str, tmp_path: Path) -> None:
    with field_of(name, tmp_path) as field:
        asyncio.run(live_through(field))
        buried = asyncio.run(drained(field))
        stored = asyncio.run(copies(field))
        verdicts = judged(field, buried, stored)

        assert all(field.count(topic) for topic in TOPICS)
        for service, verdict in verdicts.items():
            assert (0, 0) == (verdict.lost, verdict.disordered), service
        for place, count in field.places():
            assert set(range(0, count, POISON)) <= buried[place]
        # Nobody killed these, only updated one: what is stored once is handled once.
        assert [0] * 3 == [verdicts[one].repeated for one in ("steady", "during", "late")]
        assert verdicts["rolled"].repeated <= field.rolled_repeats_max
        assert verdicts["work"].repeated <= field.work_repeats_max
        assert verdicts["crew"].repeated <= field.crew_repeats_max
        for topic in TOPICS:
            published_again = sum(stored[topic].values()) - field.count(topic)
            assert 0 <= published_again <= field.stored_again_max, topic
        for member in chain(*field.members.values()):
            member.stop()


def test_the_witness_sees_what_is_lost_what_is_out_of_order_and_what_came_twice(
    tmp_path: Path,
) -> None:
    first, second, third = 0, KEYS, 2 * KEYS  # of one aggregate
    happened = [("start", first), ("start", second), ("done", first), ("done", second)]
    happened += [("start", third), ("done", third), ("done", third)]
    ledger = Ledger(tmp_path / "ledger")
    ledger.path.write_text("".join(f"{kind} s#1 t k0 {number}\n" for kind, number in happened))
    ledger.read()
    count = 2 * KEYS + 2
    others = set(range(count)) - {first, second, third, count - 1}

    verdict = ledger.judge(("s", "t"), count, others, Counter(range(count)))

    assert Verdict(events=count, lost=1, disordered=1, repeated=1) == verdict
