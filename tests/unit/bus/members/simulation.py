"""
A service of many processes in a world without sockets, where all can go wrong.

Time, network, broker and processes are simulated from one seed; the members themselves, with
all that they keep and say to each other, are the real ones. Messages are delayed, and in a
rough world lost, doubled and overtaken by others. Processes join, stop, are killed, frozen and
cut off, and the broker goes away.

A witness sees each handler begin and end: no event is begun before the one before it of its key
was handled, none is lost, and none comes again but for a process that was killed, frozen or cut
off.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from penstock.bus.engine import Delivery, IsTaken
from penstock.bus.engines.nats.members.group import BEATS, Group
from penstock.bus.engines.nats.members.slots import Table
from penstock.bus.engines.nats.members.words import Event, Handed, Word

TAKEOVER_S = 3.0
FRESH = 0.8
RENEWALS = 3
PATIENCE_S = 2.0
WINDOW = 20
FAILURES = 0.05
LOOK_S = 0.05
TOPIC = "t"
END_S = 600.0


class Record(NamedTuple):
    """What is written in the lease."""

    sequence: int
    holder: str
    table: Table


class Server:
    """One durable consumer, and the lease."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        """The key of each stored event."""
        self.read = 0
        """How many of them were delivered."""
        self.acked: set[int] = set()
        self.lease = Record(0, "", {})
        self.reader = 0
        """The reign that is pinned."""

    def write(self, holder: str, after: int, table: Table) -> Record:
        """Write the lease if nothing came in between; return what is written."""
        if after == self.lease.sequence:
            self.lease = Record(after + 1, holder, table)
        return self.lease

    def unpin(self, reign: int) -> list[int]:
        """Serve this reign from now on; return what is delivered and not acked."""
        self.reader = max(self.reader, reign)
        return sorted(set(range(1, self.read + 1)) - self.acked)

    def fetch(self, reign: int, count: int) -> list[int]:
        """Return new events."""
        if reign != self.reader:
            return []
        first = self.read + 1
        self.read = min(len(self.keys), self.read + count)
        return list(range(first, self.read + 1))


class World:
    """Everything there is."""

    def __init__(self, seed: int, *, is_rough: bool, is_easy: bool = False) -> None:
        self.dice = random.Random(seed)
        self.is_rough = is_rough
        self.is_easy = is_easy
        """Whether handlers and network are quick, and no handler fails."""
        self.now_s = 0.0
        self.server = Server()
        self.witness = Witness(self)
        self.processes: list[Process] = []
        self.is_away = False
        self._calendar: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._last: dict[str, int] = {}
        self._last_s: defaultdict[tuple[str, str], float] = defaultdict(float)

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        """Have something happen later."""
        self._count += 1
        heappush(self._calendar, (self.now_s + delay_s, self._count, act))

    def run(self, until_s: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; return whether it was over before."""
        while self._calendar and self._calendar[0][0] <= until_s:
            self.now_s, _, act = heappop(self._calendar)
            act()
            if is_over():
                return True
        self.now_s = until_s
        return is_over()

    def delay_s(self) -> float:
        dice = self.dice
        is_quick = self.is_easy or dice.random() < 0.95
        return dice.uniform(0.001, 0.01) if is_quick else dice.uniform(0.01, 0.3)

    def carry(self, sender: Process, name: str, act: Callable[[Process], None]) -> None:
        """Bring something from one process to another."""
        if not sender.is_connected:
            return
        receiver = next((one for one in self.processes if one.name == name), None)
        if receiver is None:
            return
        pair = (sender.name, name)
        times = 1
        if self.is_rough:
            times = self.dice.choices((0, 1, 2), (1, 97, 2))[0]
        for _ in range(times):
            due_s = self.now_s + self.delay_s()
            if not (self.is_rough and self.dice.random() < 0.02):
                due_s = self._last_s[pair] = max(due_s, self._last_s[pair])
            self.at(due_s - self.now_s, lambda: receiver.hear(act))

    def publish(self, count: int) -> None:
        """Store events of keys at random."""
        for _ in range(count):
            self.server.keys.append(key := f"k{self.dice.randrange(KEYS)}")
            number = len(self.server.keys)
            if key in self._last:
                self.witness.before[number] = self._last[key]
            self._last[key] = number

    def joined(self) -> Process:
        """Start a process."""
        one = Process(self, f"m{len(self.processes)}")
        self.processes.append(one)
        one.begin()
        return one

    @property
    def is_led(self) -> bool:
        """Whether some process leads, and has led for a while."""
        return any(
            one.group.desk is not None and one.led_s < self.now_s - 2 * TAKEOVER_S
            for one in self.living
        )

    @property
    def living(self) -> list[Process]:
        return [one for one in self.processes if one.is_alive]


class Witness:
    """Sees what is begun and done."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.done: defaultdict[int, list[Process]] = defaultdict(list)
        self.done_s: dict[int, float] = {}
        self.begun: defaultdict[int, list[Process]] = defaultdict(list)
        self.begun_s: defaultdict[int, list[tuple[Process, float]]] = defaultdict(list)
        self.ackers: defaultdict[int, set[Process]] = defaultdict(set)
        self.before: dict[int, int] = {}
        """The event before each, of the same key."""

    def begin(self, number: int, process: Process, since_s: float) -> None:
        """Judge an event that is begun, and that the process has had ready since a while."""
        others = [
            one.name for one, at_s in self.begun_s[number] if one is not process and at_s > since_s
        ]
        assert not others, (
            f"{self._world.now_s:.3f} {process.name} begins {number}, which it had ready since "
            f"{since_s:.3f} and others have begun with meanwhile: {others}"
        )
        self.begun_s[number].append((process, self._world.now_s))
        before = self.before.get(number)
        assert before is None or self.done[before], (
            f"{self._world.now_s:.3f} {process.name} begins {number} before {before} is done, "
            f"which {[one.name for one in self.begun[before]]} began"
        )
        suspects = [*self.done[number], *self.ackers[number]]
        running = [one for one in self._world.living if one.runs(number) and one is not process]
        assert not (self.done[number] or running) or any(
            one.is_tainted for one in (*suspects, *self.begun[number], process)
        ), (
            f"{self._world.now_s:.3f} {process.name} repeats {number}: done by "
            f"{[one.name for one in self.done[number]]}, run by {[one.name for one in running]}"
        )
        self.begun[number].append(process)


class Source:
    """What a process remembers of the one consumer."""

    stream = "s"

    def __init__(self, process: Process) -> None:
        self._process = process
        self.held: dict[int, Delivery] = {}
        self.settled: set[int] = set()

    def settle(self, deliveries: Collection[Delivery]) -> None:
        self.finish(deliveries)
        for one in deliveries:
            self.ack(one.sequence)

    def finish(self, deliveries: Collection[Delivery]) -> None:
        for one in deliveries:
            self.held.pop(one.sequence, None)
            self.settled.add(one.sequence)

    def forget(self, delivery: Delivery) -> None:
        if self.held.get(delivery.sequence) is delivery:
            del self.held[delivery.sequence]

    def extend(self, deliveries: Collection[Delivery]) -> None:
        pass

    def ack(self, number: int) -> None:
        process = self._process
        process.world.witness.ackers[number].add(process)
        if process.is_connected:
            process.world.at(
                process.world.delay_s(), lambda: process.world.server.acked.add(number)
            )

    def deliver(self, number: int, key: str) -> Delivery:
        delivery = Delivery(TOPIC, key.encode(), b"", number, self)
        delivery.key = key
        self.held[number] = delivery
        return delivery


class Lease:
    """The right to lead, with the timing of the real one."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.is_held = False
        self.confirmed_s = 0.0
        self.sequence = 0
        self.seen = Record(0, "", {})
        self.seen_s = 0.0
        self.is_known = False
        self._is_writing = self._is_due = self._is_looking = False

    @property
    def fresh_s(self) -> float:
        left_s = self.confirmed_s + TAKEOVER_S * FRESH - self._process.world.now_s
        return left_s if self.is_held else 0.0

    def renew(self) -> None:
        self._is_due = True
        if self.is_held and not self._is_writing:
            self._process.later(0.0, self.write)

    def look(self) -> None:
        """Take it if it is free, or its holder has been silent for too long."""
        process = self._process
        if not self.is_held and not self._is_looking:
            self._is_looking = True
            process.ask(lambda server: server.lease, self._looked)

    def _looked(self, record: Record | None) -> None:
        self._is_looking = False
        process, now_s = self._process, self._process.world.now_s
        if record is None or self.is_held:
            self.is_known = self.is_known and record is not None
            return
        if record != self.seen or not self.is_known:
            self.seen, self.seen_s, self.is_known = record, now_s, True
        if record.holder and now_s - self.seen_s < TAKEOVER_S:
            process.group.follow(record.holder, record.table)
            return
        if process.is_stopping:
            process.group.follow(record.holder, record.table)
            return
        table = {name: slots for name, slots in record.table.items() if name != record.holder}
        self._take(record.sequence, table)

    def _take(self, after: int, table: Table) -> None:
        process, sent_s = self._process, self._process.world.now_s
        self._is_looking = True

        def taken(record: Record | None) -> None:
            self._is_looking = False
            if record != Record(after + 1, process.name, table):
                return
            if process.is_stopping:
                process.ask(lambda server: server.write("", after + 1, table), lambda record: None)
            else:
                self.is_held, self.sequence, self.confirmed_s = True, after + 1, sent_s
                process.begin_until(sent_s + TAKEOVER_S * FRESH)
                process.leads(table)

        process.ask(lambda server: server.write(process.name, after, table), taken)

    def write(self) -> None:
        if not self.is_held or self._is_writing:
            return
        self._is_writing, self._is_due = True, False
        process, sent_s, after = self._process, self._process.world.now_s, self.sequence
        table = process.group.table()

        def written(record: Record | None) -> None:
            self._is_writing = False
            if not self.is_held:
                return
            if record is None:
                process.later(0.2, self.write)
            elif record == Record(after + 1, process.name, table):
                self.sequence, self.confirmed_s = after + 1, sent_s
                process.begin_until(sent_s + TAKEOVER_S * FRESH)
                process.group.stored(table)
                if self._is_due:
                    process.later(0.0, self.write)
            elif record.holder == process.name:
                self.sequence = record.sequence
                process.later(0.0, self.write)
            else:
                self.is_held = False
                process.group.lost()

        process.ask(lambda server: server.write(process.name, after, table), written)

    def free(self, then: Callable[[], None]) -> None:
        """Leave it to others."""
        if self._is_writing:
            self._process.later(0.01, lambda: self.free(then))
            return
        process, after, table = self._process, self.sequence, self._process.group.table()
        self._is_writing = True

        def written(record: Record | None) -> None:
            self._is_writing = False
            if record is None:
                if self.fresh_s > 0:
                    process.later(0.2, lambda: self.free(then))
                    return
            elif record.holder == process.name:
                self.sequence = record.sequence
                self.free(then)
                return
            self.is_held = False
            then()

        process.ask(lambda server: server.write("", after, table), written)

    def amend(self, then: Callable[[], None]) -> None:
        """Leave the table of a free lease."""
        process = self._process

        def change(server: Server) -> Record:
            lease = server.lease
            if not lease.holder and process.name in lease.table:
                table = {name: one for name, one in lease.table.items() if name != process.name}
                return server.write("", lease.sequence, table)
            return lease

        process.ask(change, lambda record: then())


class Process:
    """A process of the service: lanes, a reader, and its group."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self.is_frozen = self.is_cut = self.is_stopping = self.is_tainted = False
        self.patterns = [TOPIC]
        self.source = Source(self)
        self.lease = Lease(self)
        self.group = Group(
            self,
            self._send,
            name=name,
            window=WINDOW,
            takeover_s=TAKEOVER_S,
            ack_wait_s=30.0,
            is_exclusive=False,
            patience_s=PATIENCE_S,
            now=lambda: world.now_s,
        )
        self.looks, self.led_s = 0, 0.0
        self._backlog: list[Callable[[], None]] = []
        self._until_s = 0.0
        self._lanes: defaultdict[str, deque[Delivery]] = defaultdict(deque)
        self._running: dict[str, Delivery] = {}
        self._parked: dict[str, Delivery] = {}
        self._ready_s: dict[Delivery, float] = {}
        self._is_stale = True
        self._is_asking = False
        self._reign = 0

    def begin(self) -> None:
        self._every(TAKEOVER_S / BEATS, self.group.tick)
        self._every(TAKEOVER_S / RENEWALS, self.lease.write)
        self._every(0.05, self.lease.look)
        self._every(0.02, self._read)

    # Life.

    @property
    def is_connected(self) -> bool:
        return self.is_alive and not self.is_cut and not self.world.is_away

    def later(self, delay_s: float, act: Callable[[], Any]) -> None:
        """Act later, unless this is dead by then; when it wakes up if it is frozen."""
        self.world.at(delay_s, lambda: self._act(act))

    def _act(self, act: Callable[[], Any]) -> None:
        if self.is_frozen:
            self._backlog.append(act)
        elif self.is_alive:
            act()

    def _every(self, wait_s: float, act: Callable[[], Any]) -> None:
        def again() -> None:
            act()
            self.later(wait_s, again)

        self.later(self.world.dice.uniform(0, wait_s), again)

    def kill(self) -> None:
        self.is_tainted, self.is_alive = True, False

    def freeze(self, for_s: float) -> None:
        if self.is_frozen or not self.is_alive:
            return
        self.is_tainted = self.is_tainted or for_s > 0.5
        self.is_frozen = True

        def thaw() -> None:
            self.is_frozen = False
            backlog, self._backlog = self._backlog, []
            for act in backlog:
                self._act(act)

        self.world.at(for_s, thaw)

    def cut(self, for_s: float) -> None:
        self.is_tainted = self.is_tainted or for_s > 0.5
        self.is_cut = True
        self.world.at(for_s, self.heal)

    def heal(self) -> None:
        """Be connected again."""
        self.is_cut = False
        self._is_stale, self.lease.is_known = True, False
        self._act(self.group.reconnected)
        self._act(self.lease.write)

    def stop(self) -> None:
        """End as the bus does that is closed."""
        if self.is_stopping or not self.is_alive:
            return
        self.is_stopping = True
        self.group.retire()
        self._leave()

    def _leave(self) -> None:
        group = self.group
        if group.close_books():
            # Its acks are known to be stored by then.
            self.ask(lambda server: self._has_told(server), self._told)
            return
        waits = self._running or not group.is_through
        self.looks += self.is_connected
        if waits and (self._running or self.looks * LOOK_S < group.leaving_s_max):
            if self.is_connected and group.desk is None:
                group.tick()
            self.later(LOOK_S, self._leave)
            return
        if not group.is_through and self.world.is_led:
            assert self.is_tainted or self.world.is_rough, "not let go of"
            self.is_tainted = True  # in the worst of networks it goes without a word
        leads, is_awaited = self.lease.is_held, not group.is_through
        if leads:
            self.ask(lambda server: self._has_told(server), lambda told: self._go(bool(told)))
        elif is_awaited:
            group.go()
            self.lease.amend(self._gone)
        else:
            group.go()
            self._gone()

    def _go(self, has_told: bool) -> None:
        if self.lease.is_held and not has_told:
            self.later(0.1, self._leave)
            return
        self.group.go()
        self.lease.free(self._gone)

    def _gone(self) -> None:
        self.is_alive = False

    def _has_told(self, server: Server) -> bool:
        server.acked |= self.source.settled
        return True

    def _told(self, told: bool | None) -> None:
        if told and self.group.close_books():
            self.group.hand_over()
            self.lease.free(self._leave)
        else:
            self.later(0.05, self._leave)

    # The broker.

    def ask(self, act: Callable[[Server], Any], then: Callable[[Any], None]) -> None:
        """Ask the broker something; None if it does not answer."""
        world = self.world

        def arrive() -> None:
            if self.is_connected:
                answer = act(world.server)
                world.at(world.delay_s(), lambda: back(answer))
            else:
                world.at(1.0, lambda: self._act(lambda: then(None)))

        def back(answer: Any) -> None:
            if self.is_connected:
                self._act(lambda: then(answer))
            else:
                world.at(1.0, lambda: self._act(lambda: then(None)))

        world.at(world.delay_s(), arrive)

    def leads(self, table: Table) -> None:
        self.led_s = self.world.now_s
        self._reign, self._is_stale, self._is_asking = self.lease.sequence, True, False
        self.group.lead(self.lease, self._reign, table)

    def _read(self) -> None:
        if self.group.desk is None or self._is_asking or self.lease.fresh_s <= 0:
            return
        if not self.is_connected or (self.is_stopping and not self._is_stale):
            return
        reign, room = self._reign, WINDOW * 3 - len(self.source.held)
        if self._is_stale:
            self._is_asking = True
            self.ask(lambda server: server.unpin(reign), lambda found: self._found(reign, found))
        elif room > 0:
            self._is_asking = True
            self.ask(
                lambda server: server.fetch(reign, room), lambda found: self._found(reign, found)
            )

    def _found(self, reign: int, found: list[int] | None) -> None:
        if reign != self._reign or self.group.desk is None:
            return
        self._is_asking = False
        if found is None:
            self._is_stale = True
            return
        was_stale, source = self._is_stale, self.source
        for number in found:
            if number in source.settled:
                source.ack(number)
        new = [one for one in found if one not in source.settled and one not in source.held]
        keys = self.world.server.keys
        self.group.hand_out([source.deliver(one, keys[one - 1]) for one in new])
        if was_stale:
            self._is_stale = False
            self.group.settled_in()

    # What the group needs.

    def _send(self, name: str, word: Word) -> None:
        if not isinstance(word, Event):
            self.world.carry(self, name, lambda receiver: receiver.group.heard(word))
            return
        handed = Handed(word.session, word.number, word.slot, TOPIC)
        message = word.delivery.sequence, word.delivery.key
        self.world.carry(self, name, lambda receiver: receiver.group.heard_event(handed, message))

    def hear(self, act: Callable[[Process], None]) -> None:
        if self.is_connected:
            self._act(lambda: act(self))

    def held(self) -> Iterable[Delivery]:
        return list(self.source.held.values())

    def key_of(self, delivery: Delivery) -> str:
        return delivery.payload.decode()

    def accept(self, message: tuple[int, str], handed: Handed) -> tuple[Delivery | None, bool]:
        number, key = message
        if number in self.source.settled:
            return None, False
        known = self.source.held.get(number)
        if known is not None:
            return known, False
        delivery = self.source.deliver(number, key)
        delivery.slot = handed.slot
        return delivery, True

    def drop(self, is_taken: IsTaken) -> Collection[Delivery]:
        for queue in self._lanes.values():
            kept = [one for one in queue if not is_taken(one)]
            queue.clear()
            queue.extend(kept)
        self._parked = {key: one for key, one in self._parked.items() if not is_taken(one)}
        running = {one for one in self._running.values() if is_taken(one)}
        for one in running:
            one.is_revoked = True
        for key in list(self._lanes):
            self._work(key)
        return running

    def begin_until(self, until_s: float) -> None:
        self._until_s = until_s
        for key in list(self._lanes):
            self._work(key)

    def woken(self) -> None:
        pass

    def arrived(self) -> None:
        self.later(0.0, self._take)

    def runs(self, number: int) -> bool:
        return any(one.sequence == number for one in self._running.values())

    # Lanes.

    def _take(self) -> None:
        for delivery in self.group.take(WINDOW * 10):
            key = delivery.payload.decode()
            self._ready_s[delivery] = self.world.now_s
            self._lanes[key].append(delivery)
            self._work(key)

    def _work(self, key: str) -> None:
        queue, world = self._lanes[key], self.world
        if key in self._running or key in self._parked or not queue:
            return
        if world.now_s >= self._until_s:
            return
        delivery = self._running[key] = queue.popleft()
        world.witness.begin(delivery.sequence, self, self._ready_s[delivery])
        slow = world.dice.random() < 0.02 and not world.is_easy
        takes_s = world.dice.uniform(0.0, 1.0 if slow else 0.02)
        self.later(takes_s, lambda: self._ended(key, delivery))

    def _ended(self, key: str, delivery: Delivery) -> None:
        del self._running[key]
        if self.world.is_easy or self.world.dice.random() >= FAILURES:
            self.world.witness.done[delivery.sequence].append(self)
            self.world.witness.done_s.setdefault(delivery.sequence, self.world.now_s)
            self.group.settle(self.source, [delivery])
        elif delivery.is_revoked:
            self.group.give_back([delivery])
        else:
            self._parked[key] = delivery
            self.later(self.world.dice.uniform(0.0, 0.3), lambda: self._again(key, delivery))
        self._work(key)

    def _again(self, key: str, delivery: Delivery) -> None:
        if self._parked.get(key) is delivery:
            del self._parked[key]
            self._lanes[key].appendleft(delivery)
            self._work(key)


KEYS = 12
EVENTS = 240


def live(seed: int, happenings: Counter[str], *, is_rough: bool, members: int = 3) -> World:
    """Let a service of some members handle events while things happen; return the world."""
    world = World(seed, is_rough=is_rough)
    dice = world.dice
    for _ in range(members):
        world.joined()
    # Half is there before anybody looks, the rest comes meanwhile.
    world.publish(EVENTS // 2)
    for _ in range(EVENTS // 8):
        world.at(dice.uniform(0.0, 8.0), lambda: world.publish(4))
    ends_s = 8.0
    for name, count in happenings.items():
        for _ in range(count):
            world.at(dice.uniform(0.05, ends_s), lambda name=name: happen(world, name))
    world.run(ends_s + 12.0)
    while not world.living:
        world.joined()
    total = EVENTS // 2 + EVENTS // 8 * 4
    numbers = range(1, total + 1)
    if not world.run(END_S, lambda: len(world.server.acked) == total):
        missing = [number for number in numbers if number not in world.server.acked]
        raise AssertionError(f"{world.now_s:.1f} not handled: {missing[:20]}")
    return world


def happen(world: World, name: str) -> None:
    """Have one thing happen to some process."""
    dice, living = world.dice, world.living
    one = dice.choice(living) if living else None
    leading = [each for each in living if each.group.desk is not None]
    if leading and dice.random() < 0.4:
        one = leading[0]
    if name == "join":
        world.joined()
    elif name == "away":
        is_away(world, dice.choice((0.3, 2.0, 6.0, 10.0)))
    elif one is None:
        return
    elif name == "stop":
        one.stop()
    elif name == "replace":
        world.joined()
        world.at(dice.uniform(0.0, 1.0), one.stop)
    elif name == "kill":
        one.kill()
        world.joined()
    elif name == "freeze":
        one.freeze(dice.choice((2.0, 4.0, 8.0)))
    elif name == "pause":
        one.freeze(dice.uniform(0.05, 0.5))
    elif name == "cut":
        one.cut(dice.choice((0.2, 2.0, 4.0, 8.0)))


def is_away(world: World, for_s: float) -> None:
    """Have the broker go away, and the processes come back one after another."""
    if world.is_away:
        return
    world.is_away = True

    def back() -> None:
        world.is_away = False
        for one in world.living:
            if not one.is_cut:
                one.is_cut = True
                world.at(world.dice.uniform(0.0, PATIENCE_S), one.heal)

    world.at(for_s, back)
