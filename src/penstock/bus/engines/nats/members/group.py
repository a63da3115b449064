"""
The members of a service: one leads, the others follow, and all of them handle.

The one that has the lease leads: it alone reads from the server, hands events to the members
by their slots, and acks what they report. The others send it signs of life, take the events
they are handed, and report. The next leader learns the same from the lease and from the
members. The server sends unacked events again, and the member that has one says so.

Whoever leaves begins nothing more. A leader that leaves gives up the lease first, and is a
member that leaves from then on. A member may go once its leader says that nothing is left
with it, neither a slot nor an event.

Here is no connection and no clock: `post` has them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import Any, Protocol

from penstock.bus.engine import Delivery, IsTaken, Membership
from penstock.bus.engines.nats.members.desk import Desk, Peer
from penstock.bus.engines.nats.members.seat import Seat
from penstock.bus.engines.nats.members.slots import Table, owners_of, slot_of
from penstock.bus.engines.nats.members.words import (
    Beat,
    Event,
    Grant,
    Handed,
    Report,
    Revoke,
    Word,
)

logger = logging.getLogger("penstock.bus")

BEATS = 4
"""The number of beats of a member within the time after which it counts as dead."""
EXTENSIONS = 3
LEADERS_LOST = 4
"""For how many take-overs a process that leaves waits, where somebody leads or did."""


class House(Protocol):
    """The process a group belongs to, as the group needs it."""

    patterns: list[str]

    def held(self) -> Iterable[Delivery]:
        """Return all deliveries that came and are not settled."""

    def key_of(self, delivery: Delivery, /) -> str:
        """Return the ordering key of a delivery."""

    def accept(self, message: Any, handed: Handed, /) -> tuple[Delivery | None, bool]:
        """Return the delivery of a message from the leader, None if done, and if it is new."""

    def drop(self, is_taken: IsTaken, /) -> Collection[Delivery]:
        """Drop deliveries that are not begun, and return those that run: they end here."""

    def begin_until(self, until_s: float, /) -> None:
        """Let handlers begin until `until_s`."""

    def woken(self) -> None:
        """Look again whether there is something to ask for."""

    def arrived(self) -> None:
        """Take what there is to handle."""


class Lead(Protocol):
    """The lease, as its holder needs it here."""

    @property
    def fresh_s(self) -> float:
        """How long nobody else can lead."""

    def renew(self) -> None:
        """Write the lease soon, with the table of then."""


class Group:
    """This process among those of its service."""

    def __init__(
        self,
        house: House,
        send: Callable[[str, Word], None],
        *,
        name: str,
        window: int,
        takeover_s: float,
        ack_wait_s: float,
        is_exclusive: bool,
        patience_s: float,
        now: Callable[[], float],
    ) -> None:
        self.desk: Desk | None = None
        """The leader's books; None while another process leads."""
        self.seat = Seat(name, window=window)
        self.takeovers = 0
        self._house = house
        self._send = send
        self._name = name
        self._window = window
        self._takeover_s = takeover_s
        self._extend_every_s = ack_wait_s / EXTENSIONS
        self._is_exclusive = is_exclusive
        self._now = now
        self._lease: Lead | None = None
        self._queue: deque[Delivery] = deque()
        """The events for this process to handle, until they are taken."""
        self._slots: Table = {}
        """The slots of each member, by the last word of a lease."""
        self._is_awaited = False
        """Whether a leader counts on this process, as far as this one knows."""
        self._patience_s = patience_s
        self._back_s = -inf
        """When the connection was back after a break."""
        self._looked_s = self._extended_s = now()

    # Roles.

    def follow(self, holder: str, table: Table) -> bool:
        """Follow the leader that the lease names, with its table of slots; tell if it is new."""
        if self.desk is not None:
            return False
        self._slots = table
        if holder in (self._name, self.seat.leader):
            return False
        self.seat.follow(holder)
        self._beat()
        return True

    def lead(self, lease: Lead, reign: int, table: Table) -> None:
        """Lead from now on, with the table in the lease and the events of this process."""
        owners = owners_of(table)
        self._drop(lambda delivery: owners[delivery.slot] != self._name)
        self.seat.let_go()
        self.seat.leader = ""
        self._lease = lease
        self.desk = Desk(
            self._name,
            reign=reign,
            window=self._window,
            is_exclusive=self._is_exclusive,
            own=self._queue,
            slot_of=lambda one: slot_of(self._house.key_of(one), one.sequence),
            held=self._house.held,
        )
        self.desk.begin(table, self._heard_s)
        for delivery in self._house.held():
            delivery.is_revoked = False
        self._looked_s = self._now()
        self.push()

    def lost(self) -> None:
        """Drop everything: another process leads, and has taken this one for dead."""
        self._step_down()
        self.let_go()

    def let_go(self) -> None:
        """Drop everything: other members have the events of this process now."""
        for delivery in self.seat.unheard:
            delivery.source.settle([delivery])
        self._drop(lambda delivery: True)
        self.seat.let_go()
        self._is_awaited = False
        self._beat()

    def retire(self) -> None:
        """Leave all events from now on to other members."""
        self.seat.is_leaving = True
        running = self._house.drop(lambda delivery: True)
        self._queue.clear()
        if self.desk is not None:
            self.desk.retire()
            self.desk.back([one.delivery for one in self._own(self.desk, running)])
            self.push()
            return
        back = [one for one in self._house.held() if one not in running]
        self._forget(back)
        self._report(back=back)
        self._beat()

    @property
    def may_hand_over(self) -> bool:
        """Whether this process leads, leaves, and can do the latter as a member."""
        desk = self.desk
        if desk is None or self._is_exclusive or not self.seat.is_leaving or not desk.others:
            return False
        # The next leader asks the owner of a slot for an event, and nobody else.
        return all(desk.is_own(entry.delivery) for entry in desk.me.has.values())

    def close_books(self) -> bool:
        """
        Have all slots stay where they are, if another process can lead; return whether it can.

        Acks from now on are of events whose member still has their slots when the next
        process leads, and remembers them. Earlier ones are to be confirmed before that.
        """
        if self.desk is not None:
            self.desk.is_closing = self.may_hand_over
            self.push()
        return self.may_hand_over

    def hand_over(self) -> None:
        """Stop leading, before the lease is free, and keep only what runs."""
        assert self.desk is not None
        table = self.desk.table()
        self._step_down()
        self._slots = table
        self._drop(lambda delivery: True)
        self._is_awaited = True

    def go(self) -> None:
        """Be in no table from now on, and tell the others."""
        if self.desk is not None:
            table = self.desk.table()
            self._answer_all(self.desk)
            self._step_down()
            self._slots = table
        elif not self.is_through:
            # Nobody leads, as when all stop at once. Acks count, whoever says them.
            for delivery in self.seat.unheard:
                delivery.source.settle([delivery])
        elif self.seat.leader:
            self._send(self.seat.leader, self.seat.beat((), self._now(), is_gone=True))
        self._slots = {name: one for name, one in self._slots.items() if name != self._name}
        self.seat.leader = ""

    @property
    def is_answered(self) -> bool:
        """Whether nothing is awaited from the leader."""
        return self.desk is not None or self.seat.is_answered

    @property
    def leaving_s_max(self) -> float:
        """How long a member that leaves waits for the word of a leader."""
        # One that is dead is replaced, and its successor asks; a free lease may stay free.
        return self._takeover_s * (LEADERS_LOST if self.seat.leader else 1)

    @property
    def is_through(self) -> bool:
        """Whether a leader has all reports, and of one that leaves nothing in its books."""
        if not self.seat.is_leaving:
            return not self.seat.unheard
        if self.desk is not None:
            return not self.desk.has_leaving  # they have nobody else to report to
        return not self._is_awaited or self.seat.may_go

    # The table in the lease.

    def table(self) -> Table:
        """Return what the lease has to say about slots when it is written now."""
        return self._slots if self.desk is None else self.desk.table()

    def stored(self, table: Table) -> None:
        """Hear that the lease was written."""
        if self.desk is not None:
            self.desk.stored(table)
            self.push()

    @property
    def membership(self) -> Membership:
        """The members that share the work, as far as this process knows."""
        desk = self.desk
        if desk is None:
            slots = {name: len(slots) for name, slots in self._slots.items()}
            return Membership(self._name, self.seat.leader, slots, self.takeovers)
        owned = {name: desk.owners.count(name) for name in desk.peers}
        return Membership(self._name, self._name, owned, self.takeovers + desk.takeovers)

    # What is handled here.

    def take(self, messages_max: int) -> list[Delivery]:
        """Return the events for this process to handle."""
        queue = self._queue
        return [queue.popleft() for _ in range(min(messages_max, len(queue)))]

    def settle(self, source: Any, deliveries: Collection[Delivery]) -> None:
        """Ack messages, directly or through the leader."""
        desk = self.desk
        if desk is not None:
            source.settle(deliveries)
            for delivery in deliveries:
                desk.done(delivery)
            self._house.woken()
            if not desk.is_plain:
                self.push()
            return
        reported = [one for one in deliveries if self.seat.knows(one)]
        source.finish(reported)
        if len(reported) < len(deliveries):
            # Of a leader that is gone. An ack says that something was handled, whoever says it.
            source.settle([one for one in deliveries if not self.seat.knows(one)])
        if reported:
            self._report(done=reported)

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Give events to other members that were not begun, or failed and are not ours any more."""
        if self.desk is not None:
            self.desk.back(deliveries)
            self.push()
            return
        self._forget(deliveries)
        self._report(back=deliveries)

    @property
    def shares(self) -> bool:
        """Whether there are others to hand events to."""
        return self.desk is None or not self.desk.is_plain

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

    def drop(self, source: Any) -> None:
        """Drop events of a consumer that is not read any more."""
        if self.desk is not None:
            self.desk.forget([one for one in self._house.held() if one.source is source])
        self._drop(lambda delivery: delivery.source is source)

    def push(self) -> None:
        """Send the pending messages to members, and have pending changes of owners stored."""
        desk, lease = self.desk, self._lease
        if desk is None or lease is None or lease.fresh_s <= 0:
            return
        if desk.is_plain:
            if self._queue:
                self._house.arrived()
            return
        for entry in desk.hand_out():
            assert entry.peer is not None
            session, delivery = desk.session(entry.peer), entry.delivery
            self._send(entry.peer.name, Event(session, entry.number, delivery.slot, delivery))
        for peer, slots in list(desk.revocations()):
            self._revoke(desk, peer, slots)
        if self._queue:
            self._house.arrived()
        if desk.has_to_write:
            lease.renew()

    def reconnected(self) -> None:
        """Say at once that this process lives, and give the others time to do so."""
        self._back_s = self._now()
        if self.desk is not None:
            self.desk.awake(self._heard_s)
        self._beat()

    @property
    def _heard_s(self) -> float:
        """When members that can say nothing yet count as heard."""
        # After a break of the broker they come back one after another.
        return max(self._now(), self._back_s + self._patience_s)

    def tick(self) -> None:
        """Do what is to be done `BEATS` times in the time of a take-over."""
        if self.desk is None:
            self._beat()
        else:
            self._look_around(self.desk)

    def _revoke(self, desk: Desk, peer: Peer, slots: list[int]) -> None:
        if peer is not desk.me:
            number = desk.next_number(peer)
            self._send(peer.name, Revoke(desk.session(peer), number, slots))
            return
        taken = frozenset(slots)
        running = self._house.drop(lambda delivery: delivery.slot in taken)
        for delivery in [one for one in self._queue if one.slot in taken]:
            self._queue.remove(delivery)
        own = self._own(desk, running)
        desk.back([one.delivery for one in own if one.delivery.slot in taken])
        desk.released(desk.me, slots)

    def _look_around(self, desk: Desk) -> None:
        """Remove silent members, and put off the deadlines of events that others have."""
        now_s = self._now()
        assert self._lease is not None
        if self._lease.fresh_s <= 0 or now_s - self._looked_s > 2 * self._takeover_s / BEATS:
            # The broker was away, or this process: nobody could be heard.
            desk.awake(self._heard_s)
        self._looked_s = now_s
        for peer in desk.silent(now_s, self._takeover_s):
            logger.warning("! %s is silent; others have its keys now", peer.name)
        if now_s - self._extended_s > self._extend_every_s:
            self._extended_s = now_s
            for delivery in desk.elsewhere():
                delivery.source.extend([delivery])
        self.push()

    def _answer_all(self, desk: Desk) -> None:
        for peer in desk.peers.values():
            if peer.session and peer is not desk.me:
                self._answer(desk, peer, peer.beat)  # all that it was told by now

    def _answer(self, desk: Desk, peer: Peer, beat: int) -> None:
        assert self._lease is not None
        grant = Grant(
            leader=self._name,
            beat=beat,
            for_s=self._lease.fresh_s,
            session=desk.session(peer) if peer.session else "",
            reports=peer.reports,
            may_go=desk.may_go(peer),
        )
        self._send(peer.name, grant)

    # What goes back and forth.

    def heard(self, word: Beat | Report | Grant | Revoke) -> None:
        """Hear a word of another member."""
        desk = self.desk
        if desk is not None:
            if isinstance(word, Beat):
                self._heard_beat(desk, word)
            elif isinstance(word, Report):
                self._heard_report(desk, word)
        elif isinstance(word, Grant):
            self._heard_grant(word)
        elif isinstance(word, Revoke):
            self._heard_revoke(word)

    def _heard_beat(self, desk: Desk, beat: Beat) -> None:
        if self._lease is None or self._lease.fresh_s <= 0:
            return  # another process may lead by now
        known = set(desk.peers)
        peer, again = desk.heard(beat, self._now())
        if known != set(desk.peers):
            self._lease.renew()
            logger.info("= members of this service: %s", ", ".join(sorted(desk.peers)))
        self._answer(desk, peer or Peer(beat.member, 0.0), beat.number)
        for entry in again:
            session = desk.session(peer) if peer is not None else ""
            delivery = entry.delivery
            self._send(beat.member, Event(session, entry.number, delivery.slot, delivery))
        self.push()

    def _heard_report(self, desk: Desk, report: Report) -> None:
        done: dict[Any, list[Delivery]] = {}
        for delivery in desk.reported(report):
            done.setdefault(delivery.source, []).append(delivery)
        for source, deliveries in done.items():
            source.settle(deliveries)
        self._house.woken()
        self.push()

    def heard_event(self, handed: Handed, message: Any) -> None:
        """Take an event that the leader hands to this process."""
        if self.desk is not None or not self.seat.is_next(handed.session, handed.number):
            return  # what is missing, and this, comes again
        delivery, is_new = self._house.accept(message, handed)
        if delivery is None:
            self._report(numbers=[handed.number])
            return
        self.seat.hand(delivery, handed.number)
        delivery.is_revoked = self.seat.is_leaving
        if is_new and self.seat.is_leaving:
            self.give_back([delivery])
        elif is_new:
            self._queue.append(delivery)
            self._house.arrived()

    def _heard_grant(self, grant: Grant) -> None:
        if grant.leader != self.seat.leader:
            return
        until_s = self.seat.granted(grant)
        if until_s is None:
            if not self.seat.is_leaving:
                logger.warning("! others have the keys of this process now; it begins anew")
            self.let_go()
        elif until_s:
            self._is_awaited = True
            self._house.begin_until(until_s)

    def _heard_revoke(self, revoke: Revoke) -> None:
        if not self.seat.is_next(revoke.session, revoke.number):
            return
        taken = frozenset(revoke.slots)
        back = self._drop(lambda delivery: delivery.slot in taken)
        self._report(back=back, released=revoke.slots)

    def _report(self, **said: Any) -> None:
        report = self.seat.report(**said)
        if self.seat.leader and self.seat.session:
            self._send(self.seat.leader, report)

    def _beat(self) -> None:
        if self.desk is None and self.seat.leader and (self._house.patterns or self._is_awaited):
            self._send(self.seat.leader, self.seat.beat(self._house.patterns, self._now()))

    # What is forgotten.

    def _step_down(self) -> None:
        if self.desk is not None:
            self.takeovers += self.desk.takeovers
        self.desk = self._lease = None
        self._slots = {}

    def _drop(self, is_taken: IsTaken) -> list[Delivery]:
        """Drop events of this process that are not begun; return them."""
        running = self._house.drop(is_taken)
        back = [one for one in self._house.held() if is_taken(one) and one not in running]
        self._forget(back)
        kept = [one for one in self._queue if not is_taken(one)]
        self._queue.clear()  # not replaced: the desk has it too
        self._queue.extend(kept)
        return back

    def _forget(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            delivery.source.forget(delivery)

    def _own(self, desk: Desk, running: Collection[Delivery]) -> list[Any]:
        return [one for one in desk.me.has.values() if one.delivery not in running]
