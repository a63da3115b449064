"""
The members of a service: one leads, the others follow, and all of them handle.

The one that has the lease leads: it alone reads from the server, hands events to the members
by their slots, and acks what they report. The others send it signs of life, take the events
they are handed, and report. The next leader learns the same from the lease and from the
members. The server sends unacked events again, and the member that has one says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import Any, Protocol

import msgspec

from penstock.bus.elapsed import elapsed_s
from penstock.bus.engine import PIN_ID, Delivery, IsTaken, Membership
from penstock.bus.engines.nats.acks import is_ack_subject, place_of
from penstock.bus.engines.nats.lease import Lease, Written
from penstock.bus.engines.nats.members.desk import Desk, Entry, Peer
from penstock.bus.engines.nats.members.seat import Seat
from penstock.bus.engines.nats.members.words import (
    ACKED_AT,
    Beat,
    Grant,
    Report,
    event_subject,
    read_event,
)
from penstock.bus.engines.nats.source import Source
from penstock.bus.operate.failures import STOPS
from penstock.client import Client
from penstock.errors import ClientError, JetStreamError
from penstock.hot.wire import Op
from penstock.protocol import headers as header_block

logger = logging.getLogger("penstock.bus")

BEATS = 4
"""The number of beats of a member within the time after which it counts as dead."""
EXTENSIONS = 3
FLUSH_LOOK_S = RETRY_S = 0.05
LEAVING_S_MAX = 0.5
"""How long a leaving process waits for a leader."""


class House(Protocol):
    """The reader a group belongs to, as the group needs it."""

    patterns: list[str]

    def held(self) -> Iterable[Delivery]:
        """Return all deliveries that came and are not settled."""

    def key_of(self, delivery: Delivery, /) -> str:
        """Return the ordering key of a delivery."""

    def source_at(self, stream: str, durable: str) -> Source:
        """Return the source that remembers the messages of a consumer."""

    def withdraw(self, is_taken: IsTaken, /) -> Awaitable[None]:
        """Drop unsettled deliveries that are taken; return once no handler has one."""

    def begin_until(self, until_s: float, /) -> None:
        """Let handlers begin until `until_s`."""

    def woken(self) -> None:
        """Look again whether there is something to do."""


class Group:
    """This process among those of its service."""

    def __init__(
        self,
        client: Client,
        house: House,
        *,
        name: str,
        subject: Callable[[str], str],
        window: int,
        takeover_s: float,
        ack_wait_s: float,
        is_exclusive: bool,
    ) -> None:
        self.desk: Desk | None = None
        """The leader's books; None while another process leads."""
        self.seat = Seat(name, window=window)
        self.arrived = asyncio.Event()
        """Set when there is something to take."""
        self.takeovers = 0
        self._client = client
        self._house = house
        self._name = name
        self._subject = subject
        self._window = window
        self._takeover_s = takeover_s
        self._extend_every_s = ack_wait_s / EXTENSIONS
        self._is_exclusive = is_exclusive
        self._lease: Lease | None = None
        self._is_letting_go = self._is_closed = False
        self._wake = asyncio.Event()
        self._handed: deque[Delivery] = deque()
        self._aside: deque[Delivery] = deque()
        """Events of slots that are being released."""
        self._releasing: Counter[int] = Counter()
        self._letting_go = asyncio.Lock()
        self._slots: dict[str, int] = {}
        self._writing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked_s = self._extended_s = elapsed_s()
        self._skipped = len(subject(name)) + 1
        self._interest = client.listen(f"{subject(name)}.>", self._receive)
        client.connection.watchers.append(self)
        self._loop = asyncio.get_running_loop()
        self._beating = self._loop.create_task(self._beat_for_ever())

    # Roles.

    def follow(self, written: Written) -> None:
        """Follow the leader that the lease names, with its table of slots."""
        self._slots = {name: len(slots) for name, slots in written.members.items()}
        if self.desk is None and written.holder not in (self._name, self.seat.leader):
            self.seat.follow(written.holder)
            self._wake.set()

    def lead(self, lease: Lease) -> None:
        """Lead from now on, with the table in the lease and the events of this process."""
        self._lease = lease
        self.desk = Desk(
            self._name,
            reign=lease.sequence,
            window=self._window,
            is_exclusive=self._is_exclusive,
            key_of=self._house.key_of,
            held=self._house.held,
        )
        self.desk.me.is_leaving = self.seat.is_leaving
        self.desk.begin(lease.members, elapsed_s())
        letting_go = {slot for slot, times in self._releasing.items() if times}
        self.desk.me.revoked |= letting_go
        self.desk.me.told |= letting_go
        self.desk.own.extend(self._handed)
        self._handed.clear()
        self._aside.clear()
        self.seat.let_go()
        self.seat.leader = ""
        self._looked_s = elapsed_s()

    def step_down(self) -> None:
        """Stop leading."""
        if self.desk is not None:
            self.takeovers += self.desk.takeovers
        self.desk = self._lease = None

    def retire(self) -> None:
        """Leave all events from now on to other members."""
        self.seat.is_leaving = True
        if self.desk is not None:
            self.desk.retire()
            self.push()
        else:
            self.give_back(self._take(len(self._handed)))
            self._beat()

    async def close(self) -> None:
        """Leave."""
        if self.desk is not None:
            for peer in self.desk.peers.values():
                self._answer(self.desk, peer, peer.mark[0])  # all that it was told by now
        else:
            await self._take_leave()
        self._is_closed = True
        self._client.unlisten(self._interest)
        self._client.connection.watchers.remove(self)
        tasks = [self._beating, *self._tasks, *([self._writing] if self._writing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_leave(self) -> None:
        """Have whoever leads know that this process is gone, or comes to lead in a moment."""
        deadline_s = elapsed_s() + LEAVING_S_MAX
        while self.seat.session and elapsed_s() < deadline_s and self._client.connected:
            self._say("beat", self.seat.beat((), elapsed_s(), is_gone=True))
            await asyncio.sleep(RETRY_S / 5)

    # What is handled here.

    @property
    def membership(self) -> Membership:
        """The members that share the work, as far as this process knows."""
        desk = self.desk
        if desk is None:
            return Membership(self._name, self.seat.leader, self._slots, self.takeovers)
        slots = {name: len(slots) for name, slots in desk.table(desk.owners).items()}
        return Membership(self._name, self._name, slots, self.takeovers + desk.takeovers)

    def take(self, messages_max: int) -> list[Delivery]:
        """Return the events for this process to handle."""
        taken = self._take(messages_max)
        if not (self._handed if self.desk is None else self.desk.own):
            self.arrived.clear()
        return taken

    def _take(self, messages_max: int) -> list[Delivery]:
        queue = self._handed if self.desk is None else self.desk.own
        return [queue.popleft() for _ in range(min(messages_max, len(queue)))]

    def settle(self, source: Source, deliveries: Collection[Delivery]) -> None:
        """Ack messages, directly or through the leader."""
        if self.desk is not None:
            source.settle(deliveries)
            for delivery in deliveries:
                self.desk.done(delivery)
            self._house.woken()
            return
        reported = [one for one in deliveries if self.seat.knows(one)]
        source.finish(reported)
        if len(reported) < len(deliveries):
            # Of a leader that is gone. An ack says that something was handled, whoever says it.
            source.settle([one for one in deliveries if not self.seat.knows(one)])
        if reported:
            self._say("report", self.seat.report(done=reported))

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Give events that were not begun to other members."""
        if self.desk is not None:
            self.desk.back(deliveries)
            self.push()
            return
        for delivery in deliveries:
            delivery.source.held.pop(delivery.sequence, None)
        if deliveries:
            self._say("report", self.seat.report(back=deliveries))

    @property
    def shares(self) -> bool:
        """Whether there are others to hand events to."""
        return self.desk is None or len(self.desk.peers) > 1

    # The leader's part.

    @property
    def window(self) -> int:
        """How much all members together take."""
        return self.desk.window if self.desk is not None else 0

    def settled_in(self) -> None:
        """Note that all unacked events have come and were handed out."""
        if self.desk is not None and not self.desk.may_move:
            self.desk.may_move = True
            self.push()

    def hand_out(self, deliveries: Iterable[Delivery]) -> None:
        """Hand events to the members that own their slots."""
        if self.desk is not None:
            self.desk.take(deliveries)
            self.push()

    def push(self) -> None:
        """Send the pending messages to members, and store the pending changes of owners."""
        desk, lease = self.desk, self._lease
        if desk is None or lease is None or not lease.is_fresh or self._is_closed:
            return
        for entry in desk.hand_out():
            self._send(desk, entry)
        for peer, slots in list(desk.revocations()):
            self._revoke(desk, peer, slots)
        if desk.own:
            self.arrived.set()
        if self._writing is None and (owners := desk.movable()) is not None:
            self._writing = self._loop.create_task(self._write(desk, lease, owners))
            self._writing.add_done_callback(self._written)

    async def _write(self, desk: Desk, lease: Lease, owners: list[str]) -> None:
        """Store the owners of the slots, and act on them once they are stored."""
        while True:
            try:
                if await lease.update(desk.table(owners)):
                    desk.written(owners)
                return
            except (ClientError, JetStreamError) as error:
                logger.info("= who has which keys cannot be written down yet: %s", error)
                await asyncio.sleep(FLUSH_LOOK_S)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if not task.cancelled() and task.exception() is not None:
            logger.error("! sharing keys", exc_info=task.exception())
        self.push()

    def _send(self, desk: Desk, entry: Entry) -> None:
        peer, delivery = entry.peer, entry.delivery
        assert peer is not None
        block, payload = delivery.block, delivery.payload
        if len(block) + len(payload) > self._client.connection.payload_bytes_max:
            block = _without_pin(block)
        base, session = self._subject(peer.name), desk.session(peer)
        subject = event_subject(base, session, entry.number, entry.slot, delivery.topic)
        reply = delivery.handle.removeprefix(ACKED_AT)
        self._client.send_nowait(subject, payload, reply, block)

    def _revoke(self, desk: Desk, peer: Peer, slots: list[int]) -> None:
        if peer is desk.me:
            self._start(self._release_own(desk, slots))
            return
        subject = f"{self._subject(peer.name)}.revoke.{desk.session(peer)}.{desk.next_number(peer)}"
        self._client.send_nowait(subject.encode(), msgspec.json.encode(slots), b"", b"")

    async def _release_own(self, desk: Desk, slots: list[int]) -> None:
        """Release slots that another member gets."""
        taken = frozenset(slots)
        queued = [one for one in desk.own if one.slot in taken]
        for delivery in queued:
            desk.own.remove(delivery)
        await self._house.withdraw(lambda delivery: delivery.slot in taken)
        if desk is self.desk:
            left = [one for one in desk.me.has.values() if one.slot in taken]
            desk.back([entry.delivery for entry in left])
            desk.released(desk.me, slots)
            self.push()

    def _heard_beat(self, desk: Desk, beat: Beat) -> None:
        lease = self._lease
        if lease is None or not lease.is_fresh:
            return  # it may be another's by now
        known = set(desk.peers)
        peer, again = desk.heard(beat, elapsed_s())
        if known != set(desk.peers):
            lease.members = desk.table(desk.owners)
            logger.info("= members of this service: %s", ", ".join(sorted(desk.peers)))
        self._answer(desk, peer or Peer(beat.member, 0.0), beat.number)
        for entry in again:
            self._send(desk, entry)
        self.push()

    def _answer(self, desk: Desk, peer: Peer, beat: int) -> None:
        assert self._lease is not None
        grant = Grant(
            leader=self._name,
            beat=beat,
            for_s=self._lease.fresh_s,
            session=desk.session(peer) if peer.session else "",
            reports=peer.reports,
            is_whole=desk.may_move,
        )
        subject = f"{self._subject(peer.name)}.grant"
        self._client.send_nowait(subject.encode(), msgspec.json.encode(grant), b"", b"")

    def _heard_report(self, desk: Desk, report: Report) -> None:
        done: dict[Source, list[Delivery]] = {}
        for delivery in desk.reported(report):
            done.setdefault(delivery.source, []).append(delivery)
        for source, deliveries in done.items():
            source.settle(deliveries)
        self._house.woken()
        self.push()

    def _look_around(self, desk: Desk) -> None:
        """Remove silent members, and put off the deadlines of events that others have."""
        now_s = elapsed_s()
        if now_s - self._looked_s > 2 * self._takeover_s / BEATS:
            # It is this process that was away: what the others said is still to be read.
            for peer in desk.peers.values():
                peer.heard_s = max(peer.heard_s, now_s - self._takeover_s / 2)
        self._looked_s = now_s
        for peer in desk.silent(now_s, self._takeover_s):
            logger.warning("! %s is silent; others have its keys now", peer.name)
        if now_s - self._extended_s > self._extend_every_s:
            self._extended_s = now_s
            for delivery in desk.elsewhere():
                delivery.source.extend([delivery])
        self.push()

    # The part of a member that follows.

    def _heard_event(self, operation: Op, said: bytes) -> None:
        session, number, slot, topic = read_event(said)
        reply = ACKED_AT + operation[3]
        if not is_ack_subject(reply) or not self.seat.is_next(session, number):
            return  # what is missing, and this, comes again
        source = self._house.source_at(*place_of(reply))
        message = (*operation[:3], reply, *operation[4:])
        delivery, is_new = source.accept(message, topic, slot)
        if delivery is None:
            self._say("report", self.seat.report(numbers=[number]))
            return
        self.seat.hand(delivery, number)
        if self._releasing[slot]:
            self._aside.append(delivery)  # it may be one that was dropped
        elif is_new and self.seat.is_leaving:
            self.give_back([delivery])
        elif is_new:
            self._handed.append(delivery)
            self.arrived.set()

    def _heard_grant(self, grant: Grant) -> None:
        if grant.leader != self.seat.leader:
            return
        until_s = self.seat.granted(grant)
        if until_s is not None:
            self._house.begin_until(until_s)
        elif self.seat.is_leaving:
            self.seat.session = ""  # the leader knows that this process is gone
        elif self.seat.session and not self._is_letting_go:
            logger.warning("! others have the keys of this process now; it begins anew")
            self._start(self.let_go())

    def _heard_revoke(self, session: str, number: int, slots: list[int]) -> None:
        if self.seat.is_next(session, number):
            self._releasing.update(slots)
            self._start(self._release(session, frozenset(slots)))

    async def _release(self, session: str, taken: frozenset[int]) -> None:
        """Release slots: once running handlers have ended, give back events not begun."""
        async with self._letting_go:
            try:
                self._handed = deque(one for one in self._handed if one.slot not in taken)
                await self._house.withdraw(lambda delivery: delivery.slot in taken)
            finally:
                self._releasing.subtract(taken)
            if self.desk is not None:
                # It leads by now, and counts on what it has here.
                self.desk.back([one for one in self._house.held() if one.slot in taken])
                self.desk.released(self.desk.me, taken)
                self.push()
            elif session == self.seat.session:
                back = self.seat.of_slots(taken)
                self._drop(taken, ())
                self._say("report", self.seat.report(back=back, released=sorted(taken)))
            else:
                self._take_again(taken)

    def _take_again(self, taken: frozenset[int]) -> None:
        """Have what is handed out again meanwhile, by a leader that has not taken it away."""
        self._aside = deque(one for one in self._aside if self.seat.knows(one))
        again = [one for one in self._aside if not self._releasing[one.slot]]
        self._drop(taken, again)
        self._aside = deque(one for one in self._aside if self._releasing[one.slot])
        self._handed.extend(again)
        self.arrived.set()

    def _drop(self, taken: frozenset[int], kept: Collection[Delivery]) -> None:
        """Forget events of some slots that are handed out and not handled here."""
        for delivery in self._house.held():
            if delivery.slot in taken and delivery not in kept:
                delivery.source.held.pop(delivery.sequence, None)

    async def let_go(self) -> None:
        """Drop everything: other members have the events of this process now."""
        self._is_letting_go = True
        for delivery in self.seat.unheard:
            delivery.source.settle([delivery])
        self.seat.let_go()
        self._handed.clear()
        self._aside.clear()
        await self._house.withdraw(lambda delivery: delivery.source is not None)
        for delivery in list(self._house.held()):
            delivery.source.held.pop(delivery.sequence, None)
        self._is_letting_go = False
        self._beat()

    async def heard_out(self) -> None:
        """Return once the leader, or else the server, has every report."""
        for delivery in self.seat.unheard:
            delivery.source.settle([delivery])
        began_s = elapsed_s()
        while self.seat.unheard:
            wait_s = self._takeover_s if self.seat.leader else LEAVING_S_MAX
            if self._client.connected and elapsed_s() - began_s > wait_s:
                return
            self._beat()
            await asyncio.sleep(FLUSH_LOOK_S)

    # What goes back and forth.

    def disconnected(self, error: Exception) -> None:
        """Nothing is heard any more."""

    def reconnected(self) -> None:
        """Say at once that this process lives; and give the others time to do so."""
        self._looked_s = 0.0
        self._beat()

    def closed(self, error: Exception) -> None:
        """Nothing will be heard any more."""

    def _receive(self, operations: list[Op]) -> None:
        for operation in operations:
            try:
                self._read(operation)
            except (ValueError, msgspec.MsgspecError) as error:
                logger.info("= a member says what cannot be read: %s", error)

    def _read(self, operation: Op) -> None:
        kind, _, rest = operation[1][self._skipped :].partition(b".")
        data, desk = operation[5][operation[4] :], self.desk
        if desk is not None and kind == b"beat":
            self._heard_beat(desk, msgspec.json.decode(data, type=Beat))
        elif desk is not None and kind == b"report":
            self._heard_report(desk, msgspec.json.decode(data, type=Report))
        elif desk is None and kind == b"event":
            self._heard_event(operation, rest)
        elif desk is None and kind == b"grant":
            self._heard_grant(msgspec.json.decode(data, type=Grant))
        elif desk is None and kind == b"revoke":
            session, number = rest.decode().split(".")
            self._heard_revoke(session, int(number), msgspec.json.decode(data, type=list[int]))

    def _say(self, kind: str, word: Beat | Report) -> None:
        if not self.seat.leader:
            return
        subject = f"{self._subject(self.seat.leader)}.{kind}"
        self._client.send_nowait(subject.encode(), msgspec.json.encode(word), b"", b"")

    def _beat(self) -> None:
        if self.desk is None and self._house.patterns and not self._is_letting_go:
            self._say("beat", self.seat.beat(self._house.patterns, elapsed_s()))

    async def _beat_for_ever(self) -> None:
        every_s = wait_s = self._takeover_s / BEATS
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
                wait_s = RETRY_S
            except TimeoutError:
                # Who leads may not be ready yet to answer.
                wait_s = every_s if self.seat.is_answered else min(2 * wait_s, every_s)
            self._wake.clear()
            try:
                if self.desk is not None:
                    self._look_around(self.desk)
                elif self._client.connected:
                    self._beat()
            except STOPS:
                raise
            except BaseException:
                logger.exception("! looking after the members of a service failed")

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _without_pin(block: bytes) -> bytes:
    """Return headers without the one that the server has added."""
    pairs = [pair for pair in header_block.decode(block) if pair[0] != PIN_ID]
    return header_block.encode(pairs) if pairs else b""
