"""
The leader's books: the members of a service, the slots of each, and the events each has.

Messages go in, messages to send come out. The desk has no connection and no clock.

**One place for each slot.** Events of a slot wait here, in order. They go to the member that
the *stored* table names, as long as that member has room. A slot moves only while no member
has any of its events: the old owner releases it, returns the events it has not begun, and
finishes those that run. Only then the leader stores the new owner, and it acts only on the
stored table. So the next leader knows which member may have which events. It first sends
them to these members again, and they report the ones that are done.

**Sessions.** Messages to a member are numbered, and so are its reports. A gap in the numbers
on either side, or a new leader, starts a new session: the leader sends all events that the
member has not reported again, in order, and the member recognises those it already has.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from penstock.bus.engine import Delivery
from penstock.bus.engines.nats.members.slots import (
    NOBODY,
    SLOTS,
    UNKEYED,
    owners_of,
    slot_of,
    spread,
    table_of,
)
from penstock.bus.engines.nats.members.words import Beat, Report
from penstock.protocol import subjects


class Entry:
    """An event that is not done with: it waits here, or a member has it."""

    __slots__ = ("delivery", "number", "peer", "place", "slot")

    def __init__(self, delivery: Delivery, slot: int, place: int) -> None:
        self.delivery = delivery
        self.slot = slot
        self.place = place
        """Grows with every event that is fetched."""
        self.peer: Peer | None = None
        self.number = 0

    def __lt__(self, other: Entry) -> bool:
        return self.place < other.place


@dataclass(eq=False)
class Peer:
    """A member, as the leader knows it."""

    name: str
    heard_s: float
    window: int = 0
    patterns: tuple[str, ...] = ()
    session: int = 0
    """0 until it is heard of in this reign."""
    life: int = -1
    """Grows each time it has let go of everything."""
    sent: int = 0
    reports: int = 0
    load: int = 0
    """How many events it has."""
    is_leaving: bool = False
    has: dict[int, Entry] = field(default_factory=dict)
    """The events it has not reported, by number."""
    revoked: set[int] = field(default_factory=set)
    """Slots it is to let go of, and gets nothing of."""
    told: set[int] = field(default_factory=set)
    """Those of which it was told in this session."""
    released: set[int] = field(default_factory=set)
    """Those of which it says that it has nothing any more."""
    mark: tuple[int, int] = (0, 0)
    """The last beat that was answered, and what had been sent by then."""

    @property
    def has_room(self) -> bool:
        """Whether it takes more."""
        return self.session > 0 and self.load < self.window

    def handles(self, topic: str) -> bool:
        """Tell whether it has a handler for a topic."""
        return any(subjects.matches(one.encode(), topic.encode()) for one in self.patterns)


@dataclass
class Slot:
    """The events of a slot."""

    waiting: deque[Entry] = field(default_factory=deque)
    out: Counter[str] = field(default_factory=Counter)
    """How many each member has."""


class Desk:
    """All that the leader has to remember."""

    def __init__(
        self,
        me: str,
        *,
        reign: int,
        window: int,
        is_exclusive: bool,
        key_of: Callable[[Delivery], str],
        held: Callable[[], Iterable[Delivery]],
    ) -> None:
        self.me = Peer(me, 0.0, window=window, session=1)
        self.peers: dict[str, Peer] = {me: self.me}
        self.owners = [NOBODY] * SLOTS
        """The owner of each slot, as stored."""
        self.wanted = list(self.owners)
        self.own: deque[Delivery] = deque()
        """The events for this process to handle."""
        self.being_written: set[int] = set()
        """Slots whose new owner is on its way to the server."""
        self.may_move = False
        """Whether all that was unacked has come, so that members can say what of it is done."""
        self.takeovers = 0
        """How many members were found to be silent."""
        self._reign = reign
        self._is_exclusive = is_exclusive
        self._key_of = key_of
        self._held = held
        """Returns all that was fetched and is not settled."""
        self._slots: dict[int, Slot] = {}
        self._busy: set[int] = set()
        """Slots with events that wait."""
        self._entries: dict[Delivery, Entry] = {}
        self._places = self._sessions = 0

    def begin(self, table: Mapping[str, Collection[int]], now_s: float) -> None:
        """Lead from now on: others may have what the table says."""
        self.owners = owners_of(table)
        for name in table:
            if name != self.me.name:
                self.peers[name] = Peer(name, now_s)
        for delivery in self._held():
            self._keep(delivery)  # as a member it has got its slot with it
        self._share_out()

    @property
    def is_plain(self) -> bool:
        """Whether there is nobody to share with, so that nothing has to be looked at."""
        return (
            not self._busy
            and (self._is_exclusive or len(self.peers) == 1)
            and not self.me.is_leaving
            and self.owners == self.wanted == [self.me.name] * SLOTS
        )

    @property
    def window(self) -> int:
        """How much all members together take."""
        return sum(one.window for one in self.peers.values() if not one.is_leaving)

    def take(self, deliveries: Iterable[Delivery]) -> None:
        """Have events handled that were fetched, in this order."""
        if self.is_plain:
            self.own.extend(deliveries)
            return
        for delivery in deliveries:
            entry = self._entries.get(delivery)
            if entry is None:
                delivery.slot = slot_of(self._key_of(delivery))
                entry = self._entry(delivery)
            self._free(entry)
            self._wait(entry)

    def hand_out(self) -> list[Entry]:
        """Return what is to be sent to other members now, oldest first; `own` gets this one's."""
        sent = []
        heap = [(self._slots[number].waiting[0].place, number) for number in self._busy]
        heapify(heap)
        while heap:
            number = heap[0][1]
            slot = self._slots[number]
            peer = self._target(number, slot)
            if peer is None:
                heappop(heap)
                continue
            entry = slot.waiting.popleft()
            self._give(entry, peer)
            if peer is self.me:
                self.own.append(entry.delivery)
            else:
                sent.append(entry)
            if slot.waiting:
                heapreplace(heap, (slot.waiting[0].place, number))
            else:
                heappop(heap)
                self._busy.discard(number)
        return sent

    def done(self, delivery: Delivery) -> None:
        """Hear that this process is done with an event."""
        entry = self._entries.pop(delivery, None)
        if entry is not None:
            self._free(entry)

    def back(self, deliveries: Iterable[Delivery]) -> None:
        """Have events wait again that this process has not begun with."""
        for delivery in deliveries:
            entry = self._entries.get(delivery)
            if entry is not None:
                self._free(entry)
                self._wait(entry)

    def released(self, peer: Peer, slots: Iterable[int]) -> None:
        """Hear that a member has nothing of some slots."""
        peer.released |= peer.revoked.intersection(slots)
        self._keep_in_mind()

    def reported(self, report: Report) -> list[Delivery]:
        """Hear what a member has done; return the events that are done with."""
        peer = self.peers.get(report.member)
        if peer is None or report.session != self.session(peer):
            return []
        if report.number != peer.reports + 1:
            return []  # its next beat shows that one is missing
        peer.reports += 1
        done = [entry for one in report.done if (entry := peer.has.get(one)) is not None]
        for entry in done:
            self._free(entry)
            del self._entries[entry.delivery]
        for one in report.back:
            if (entry := peer.has.get(one)) is not None:
                self._free(entry)
                self._wait(entry)
        if report.released:
            self.released(peer, report.released)
        return [entry.delivery for entry in done]

    def heard(self, beat: Beat, now_s: float) -> tuple[Peer | None, list[Entry]]:
        """Hear that a member lives; return it, None if it is unknown, and what it is sent again."""
        peer = self.peers.get(beat.member)
        if peer is not None and (beat.is_gone or peer.life not in (-1, beat.life)):
            self.remove(peer)
            peer = None
        if beat.is_gone or (peer is None and beat.session):
            return None, []
        if peer is None:
            peer = self.peers[beat.member] = Peer(beat.member, now_s)
        is_news = not peer.session or peer.is_leaving != beat.is_leaving
        peer.heard_s, peer.life = now_s, beat.life
        peer.patterns = tuple(beat.patterns)
        peer.window = 0 if self._is_exclusive else beat.window
        peer.is_leaving = beat.is_leaving
        again = self._renew(peer) if self._has_lost(peer, beat) else []
        if is_news:
            self._track()
            self._share_out()
        peer.mark = beat.number, peer.sent
        return peer, again

    def silent(self, now_s: float, takeover_s: float) -> list[Peer]:
        """Let go of members that nothing was heard of for so long; return them."""
        late = [
            peer
            for peer in self.peers.values()
            if peer is not self.me and now_s - peer.heard_s > takeover_s
        ]
        for peer in late:
            self.remove(peer)
        self.takeovers += len(late)
        return late

    def remove(self, peer: Peer) -> None:
        """Have others handle what a member has."""
        del self.peers[peer.name]
        for entry in list(peer.has.values()):
            self._free(entry)
            self._wait(entry)
        self._share_out()

    def retire(self) -> None:
        """Have others handle all from now on, if there are any."""
        self.me.is_leaving = True
        self._track()
        queued, self.own = self.own, deque()
        self.back(queued)
        self._share_out()

    def movable(self) -> list[str] | None:
        """Return whom to write down for each slot now; None if that is as it is written."""
        owners = [
            wanted if owner != wanted and self._is_free(number) else owner
            for number, (owner, wanted) in enumerate(zip(self.owners, self.wanted, strict=True))
        ]
        if owners == self.owners:
            return None
        pairs = enumerate(zip(self.owners, owners, strict=True))
        self.being_written = {number for number, (before, after) in pairs if before != after}
        return owners

    def written(self, owners: list[str]) -> None:
        """Hear that it is written down who has each slot."""
        self.owners = owners
        self.being_written = set()
        self._keep_in_mind()

    def revocations(self) -> Iterator[tuple[Peer, list[int]]]:
        """Yield slots that members have to let go of, each once in a session."""
        for peer in self.peers.values() if self.may_move else ():
            peer.revoked.update(
                number
                for number, (owner, wanted) in enumerate(zip(self.owners, self.wanted, strict=True))
                if owner == peer.name != wanted
            )
            slots = sorted(peer.revoked - peer.released - peer.told)
            if slots and peer.session:
                peer.told.update(slots)
                yield peer, slots

    def next_number(self, peer: Peer) -> int:
        """Count one more that is sent to a member."""
        peer.sent += 1
        return peer.sent

    def session(self, peer: Peer) -> str:
        """Return what a member's session goes by; those of another leader are others."""
        return f"{self._reign}-{peer.session}"

    def table(self, owners: list[str]) -> dict[str, list[int]]:
        """Return what is written down: all members, and the slots of each."""
        return table_of(owners, self.peers)

    def elsewhere(self) -> list[Delivery]:
        """Return all that is not with this process: it waits, or another member has it."""
        return [one.delivery for one in self._entries.values() if one.peer is not self.me]

    def _keep(self, delivery: Delivery) -> None:
        """Take note of an event that this process has."""
        self._give(self._entry(delivery), self.me)

    def _entry(self, delivery: Delivery) -> Entry:
        self._places += 1
        entry = self._entries[delivery] = Entry(delivery, delivery.slot, self._places)
        return entry

    def _track(self) -> None:
        """Take note of all that this process has, which it need not while it is alone."""
        for delivery in self._held():
            if delivery not in self._entries:
                delivery.slot = slot_of(self._key_of(delivery))
                self._keep(delivery)

    def _wait(self, entry: Entry) -> None:
        slot = self._slots.setdefault(entry.slot, Slot())
        if slot.waiting and entry < slot.waiting[-1]:
            insort(slot.waiting, entry)
        else:
            slot.waiting.append(entry)
        self._busy.add(entry.slot)

    def _give(self, entry: Entry, peer: Peer) -> None:
        entry.peer = peer
        entry.number = entry.place if peer is self.me else self.next_number(peer)
        peer.has[entry.number] = entry
        peer.load += 1
        self._slots.setdefault(entry.slot, Slot()).out[peer.name] += 1

    def _free(self, entry: Entry) -> None:
        peer, entry.peer = entry.peer, None
        if peer is None:
            return
        out = self._slots[entry.slot].out
        out[peer.name] -= 1
        if not out[peer.name]:
            del out[peer.name]
        peer.has.pop(entry.number, None)
        peer.load -= 1

    def _target(self, number: int, slot: Slot) -> Peer | None:
        """Return the member that gets the next event of a slot; None if it has to wait."""
        topic = slot.waiting[0].delivery.topic
        if number == UNKEYED:
            able = [
                one
                for one in self.peers.values()
                if one.has_room and not one.is_leaving and (one is self.me or one.handles(topic))
            ]
            return min(able, key=lambda one: one.load / one.window, default=None)
        peer = self.peers.get(self.owners[number])
        if peer is None or not peer.session or number in peer.revoked | self.being_written:
            return None
        if peer is not self.me and not peer.handles(topic):
            peer = self.me  # of another release; this one reads what it has handlers for
        if peer.is_leaving and self.may_move:
            return None  # before that it gets what it has, and says what of it is done
        if not peer.has_room or any(name != peer.name for name in slot.out):
            return None
        return peer

    def _is_free(self, number: int) -> bool:
        """Tell whether nobody has anything of a slot."""
        peer = self.peers.get(self.owners[number])
        slot = self._slots.get(number)
        return (peer is None or number in peer.released) and not (slot and slot.out)

    def _share_out(self) -> None:
        """Decide anew who is to have which slots; nothing moves if nobody stays."""
        staying = [name for name, one in self.peers.items() if not one.is_leaving]
        if self._is_exclusive:
            staying = [self.me.name]
        self.wanted = spread(self.owners, staying) if staying else list(self.owners)
        self._keep_in_mind()

    def _keep_in_mind(self) -> None:
        """Forget what was said about slots that were let go of, and stay or have moved."""
        pairs = enumerate(zip(self.owners, self.wanted, strict=True))
        moving = {number for number, (owner, wanted) in pairs if owner != wanted}
        for peer in self.peers.values():
            over = peer.released - moving
            for slots in (peer.revoked, peer.told, peer.released):
                slots -= over

    def _has_lost(self, peer: Peer, beat: Beat) -> bool:
        """Tell whether something did not arrive, or this is the first that is heard of a member."""
        answered, sent = peer.mark
        return (
            not peer.session
            or beat.session != self.session(peer)
            or beat.reports != peer.reports
            or (beat.answered == answered and beat.next <= sent)
        )

    def _renew(self, peer: Peer) -> list[Entry]:
        """Begin a session: return all that a member has not reported, in order."""
        self._sessions += 1
        again = list(peer.has.values())
        peer.session, peer.sent, peer.reports = self._sessions, 0, 0
        peer.has, peer.mark = {}, (0, 0)
        peer.told.clear()  # what it is still to let go of it is told again
        for entry in again:
            entry.number = self.next_number(peer)
            peer.has[entry.number] = entry
        return again
