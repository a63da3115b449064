"""
The leader's books: the members of a service, the slots of each, and the events each has.

Messages go in, messages to send come out. The desk has no connection and no clock.

**One place for each slot.** Events of a slot wait here, in order. They go to the member that
the *stored* table names, as long as that member has room. A slot moves only while no member
has any of its events: the old owner releases it, returns the events it has not begun, and
finishes those that run. Only then the leader stores the new owner, and it acts only on the
table that the server has confirmed. So the next leader knows which member may have which
events.

**Open events.** An event that an earlier leader may have handed out is open: the owner of its
slot gets it first of all, even if it is leaving, and says whether it is done, here, or
unknown. A slot does not move while an open event of it waits.

**Sessions.** Messages to a member are numbered, and so are its reports. A gap in the numbers
on either side, or a new leader, starts a new session: the leader sends all events that the
member has not reported again, in order, and the member recognises those it already has.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from penstock.bus.engine import Delivery
from penstock.bus.engines.nats.layout import matches
from penstock.bus.engines.nats.members.slots import (
    NOBODY,
    SLOTS,
    Table,
    owners_of,
    spread,
    table_of,
)
from penstock.bus.engines.nats.members.words import Beat, Report

MARKS_MAX = 16


class Entry:
    """An event that is not done with: it waits here, or a member has it."""

    __slots__ = ("delivery", "is_open", "number", "peer", "place")

    def __init__(self, delivery: Delivery, place: int, *, is_open: bool = False) -> None:
        self.delivery = delivery
        self.place = place
        """Grows with every event that is fetched."""
        self.is_open = is_open
        """Whether the owner of its slot may have it from an earlier leader."""
        self.peer: Peer | None = None
        self.number = 0

    def __lt__(self, other: Entry) -> bool:
        return self.place < other.place


@dataclass(eq=False)
class Peer:
    """A member, as the leader knows it."""

    name: str
    heard_s: float
    since: int = 0
    """The first of its sessions; 0 if it was a member before this reign."""
    window: int = 0
    patterns: tuple[str, ...] = ()
    session: int = 0
    """0 until it is heard of in this reign."""
    sent: int = 0
    reports: int = 0
    is_leaving: bool = False
    has: dict[int, Entry] = field(default_factory=dict)
    """The events it has not reported, by number."""
    revoked: set[int] = field(default_factory=set)
    """Slots it is to let go of, and gets nothing of."""
    told: set[int] = field(default_factory=set)
    """Those of which it was told in this session."""
    released: set[int] = field(default_factory=set)
    """Those of which it says that it begins nothing any more."""
    beat: int = 0
    """The last of its beats."""
    renewed: int = 0
    """The beat at which its session began."""
    marks: dict[int, int] = field(default_factory=dict)
    """How much had been sent to it in this session when each of its last beats was answered."""

    @property
    def has_room(self) -> bool:
        """Whether it takes more."""
        return len(self.has) < self.window

    def handles(self, topic: str) -> bool:
        """Tell whether it has a handler for a topic."""
        return any(matches(one, topic) for one in self.patterns)


@dataclass
class Slot:
    """The events of a slot."""

    waiting: deque[Entry] = field(default_factory=deque)
    open: int = 0
    """How many of them are open."""
    out: Counter[str] = field(default_factory=Counter)
    """How many each member has."""
    is_draining: bool = False
    """Whether what runs of it was released: it may come back, so nothing is sent behind it."""


class Desk:
    """All that the leader has to remember."""

    def __init__(
        self,
        me: str,
        *,
        reign: int,
        window: int,
        is_exclusive: bool,
        own: deque[Delivery],
        slot_of: Callable[[Delivery], int],
        held: Callable[[], Iterable[Delivery]],
    ) -> None:
        self.me = Peer(me, 0.0, window=window, session=1)
        self.peers: dict[str, Peer] = {me: self.me}
        self.owners = [NOBODY] * SLOTS
        """The owner of each slot, as stored."""
        self.wanted = list(self.owners)
        self.own = own
        """The events for this process to handle."""
        self.may_move = False
        """Whether all that was unacked has come, so that members can say what of it is done."""
        self.is_closing = False
        """Whether slots stay where they are, because another process is about to lead."""
        self.takeovers = 0
        """How many members were found to be silent."""
        self._reign = reign
        self._is_exclusive = is_exclusive
        self._slot_of = slot_of
        self._held = held
        """Returns all that was fetched and is not settled."""
        self._slots: dict[int, Slot] = {}
        self._busy: set[int] = set()
        """Slots with events that wait."""
        self._moving: set[int] = set()
        """Slots that are to have another owner."""
        self._doubtful: set[int] = set()
        """Slots whose new owner was sent to the server, which has not confirmed it."""
        self._entries: dict[Delivery, Entry] = {}
        self._places = self._sessions = 0

    def begin(self, table: Table, now_s: float) -> None:
        """Lead from now on: others may have what the table says."""
        self.owners = owners_of(table)
        for name in table:
            if name != self.me.name:
                self.peers[name] = Peer(name, now_s)
        self._track()
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
    def others(self) -> bool:
        """Whether another member can go on in place of this one."""
        return any(
            one is not self.me and one.session and not one.is_leaving for one in self.peers.values()
        )

    @property
    def has_leaving(self) -> bool:
        """Whether another member is about to leave."""
        return any(one.is_leaving for one in self.peers.values() if one is not self.me)

    @property
    def window(self) -> int:
        """How much all members together take."""
        some = [self.me] if self._is_exclusive else self.peers.values()
        return sum(one.window for one in some if not one.is_leaving)

    def take(self, deliveries: Iterable[Delivery]) -> None:
        """Have events handled that were fetched, in this order."""
        if self.is_plain:
            self.own.extend(deliveries)
            return
        for delivery in deliveries:
            self._wait(self._entry(delivery, is_open=not self.may_move))

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
            slot.open -= entry.is_open
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
            if entry is not None and entry.peer is not None:
                self._return(entry)

    def forget(self, deliveries: Iterable[Delivery]) -> None:
        """Drop events that are not read any more."""
        for delivery in deliveries:
            entry = self._entries.pop(delivery, None)
            if entry is not None:
                self._forget(entry)

    def released(self, peer: Peer, slots: Iterable[int]) -> None:
        """Hear that a member begins nothing of some slots."""
        released = peer.revoked.intersection(slots)
        for number in released & self._slots.keys():
            self._slots[number].is_draining = True
        peer.released |= released
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
                self._return(entry)
        if report.released:
            self.released(peer, report.released)
        return [entry.delivery for entry in done]

    def heard(self, beat: Beat, now_s: float) -> tuple[Peer | None, list[Entry]]:
        """Hear that a member lives; return it, None if it is unknown, and what it is sent again."""
        peer = self.peers.get(beat.member)
        if peer is not None and (beat.is_gone or self._is_stranger(peer, beat.session)):
            self.remove(peer)
            peer = None
        if beat.is_gone or (peer is None and beat.session):
            return None, []
        if peer is None:
            peer = Peer(beat.member, now_s, since=self._sessions + 1)
            self.peers[beat.member] = peer
        elif beat.number <= peer.beat:
            return peer, []  # an older one, which was long on its way
        is_news = not peer.session or peer.is_leaving != beat.is_leaving
        peer.heard_s, peer.is_leaving = now_s, beat.is_leaving
        peer.patterns, peer.window, peer.beat = tuple(beat.patterns), beat.window, beat.number
        again = self._renew(peer) if self._has_lost(peer, beat) else []
        if is_news:
            self._track()
            self._share_out()
        peer.marks[beat.number] = peer.sent
        if len(peer.marks) > MARKS_MAX:
            del peer.marks[next(iter(peer.marks))]
        return peer, again

    def awake(self, now_s: float) -> None:
        """Give all members time to be heard: this process could not hear them."""
        for peer in self.peers.values():
            peer.heard_s = now_s

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
            self._return(entry)
        self._share_out()

    def retire(self) -> None:
        """Have others handle all from now on, if there are any."""
        self.me.is_leaving = True
        self._track()
        self._share_out()

    @property
    def has_to_write(self) -> bool:
        """Whether a slot can move now."""
        movable = self._moving - self._doubtful
        return not self.is_closing and any(self._is_free(number) for number in movable)

    def table(self) -> Table:
        """Return what is to be written now: all members, and the slots of each."""
        owners = list(self.owners)
        for number in () if self.is_closing else self._moving:
            if self._is_free(number):
                owners[number] = self.wanted[number]
                self._doubtful.add(number)
        return table_of(owners, self.peers)

    def stored(self, table: Table) -> None:
        """Hear that a table is stored: the last one that was written."""
        before, self.owners = self.owners, owners_of(table)
        for number, slot in self._slots.items():
            if slot.open and before[number] != self.owners[number]:
                for entry in slot.waiting:
                    entry.is_open = False  # the new owner has nothing of an earlier leader
                slot.open = 0
        self._doubtful.clear()
        self._keep_in_mind()

    def revocations(self) -> Iterator[tuple[Peer, list[int]]]:
        """Yield slots that members have to let go of, each once in a session."""
        if not self.may_move:
            return
        for number in self._moving:
            peer, slot = self.peers.get(self.owners[number]), self._slots.get(number)
            if peer is self.me or (peer and peer.session and not (slot and slot.open)):
                peer.revoked.add(number)
        for peer in list(self.peers.values()):
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

    def may_go(self, peer: Peer) -> bool:
        """Tell whether nothing is left at a member that leaves, also for the next leader."""
        return (
            peer.is_leaving
            and self.may_move
            and not peer.has
            and not self._doubtful
            and peer.name not in self.owners
        )

    def elsewhere(self) -> list[Delivery]:
        """Return all that is not with this process: it waits, or another member has it."""
        return [one.delivery for one in self._entries.values() if one.peer is not self.me]

    def is_own(self, delivery: Delivery) -> bool:
        """Tell whether the slot of an event is this process's, as stored."""
        return self.owners[delivery.slot] == self.me.name

    def _entry(self, delivery: Delivery, *, is_open: bool = False) -> Entry:
        delivery.slot = self._slot_of(delivery)
        self._places += 1
        entry = Entry(delivery, self._places, is_open=is_open)
        self._entries[delivery] = entry
        return entry

    def _track(self) -> None:
        """Take note of all that this process has, which it need not while it is alone."""
        for delivery in self._held():
            if delivery not in self._entries:
                self._give(self._entry(delivery), self.me)

    def _return(self, entry: Entry) -> None:
        """Have an event wait again: whoever had it has it no more."""
        self._free(entry)
        entry.is_open = False
        self._wait(entry)

    def _wait(self, entry: Entry) -> None:
        number = entry.delivery.slot
        slot = self._slots.setdefault(number, Slot())
        slot.open += entry.is_open
        if slot.waiting and entry < slot.waiting[-1]:
            insort(slot.waiting, entry)
        else:
            slot.waiting.append(entry)
        self._busy.add(number)

    def _give(self, entry: Entry, peer: Peer) -> None:
        entry.peer = peer
        entry.number = entry.place if peer is self.me else self.next_number(peer)
        peer.has[entry.number] = entry
        self._slots.setdefault(entry.delivery.slot, Slot()).out[peer.name] += 1

    def _free(self, entry: Entry) -> None:
        peer, entry.peer = entry.peer, None
        if peer is None:
            return
        out = self._slots[entry.delivery.slot].out
        out[peer.name] -= 1
        if not out[peer.name]:
            del out[peer.name]
        peer.has.pop(entry.number, None)

    def _forget(self, entry: Entry) -> None:
        number = entry.delivery.slot
        slot = self._slots[number]
        if entry.peer is not None:
            self._free(entry)
            return
        slot.waiting.remove(entry)
        slot.open -= entry.is_open
        if not slot.waiting:
            self._busy.discard(number)

    def _target(self, number: int, slot: Slot) -> Peer | None:
        """Return the member that gets the next event of a slot; None if it has to wait."""
        entry = slot.waiting[0]
        peer = self.peers.get(self.owners[number])
        if peer is None or not peer.session or number in peer.revoked | self._doubtful:
            return None
        if peer is not self.me and not peer.handles(entry.delivery.topic):
            peer = self.me  # of another release; this one reads what it has handlers for
        is_open = entry.is_open and peer is not self.me
        if not is_open and (peer.is_leaving or not peer.has_room):
            return None
        if slot.out and (slot.is_draining or peer.name not in slot.out or len(slot.out) > 1):
            return None
        slot.is_draining = False
        return peer

    def _is_free(self, number: int) -> bool:
        """Tell whether nobody has anything of a slot."""
        peer, slot = self.peers.get(self.owners[number]), self._slots.get(number)
        if slot is not None and slot.out:
            return False
        return peer is None or number in peer.released

    def _share_out(self) -> None:
        """Decide anew who of those that are heard is to have which slots; nobody if none stays."""
        peers = self.peers.items()
        staying = [name for name, one in peers if one.session and not one.is_leaving]
        if self._is_exclusive:
            staying = [self.me.name]
        self.wanted = spread(self.owners, staying)
        self._keep_in_mind()

    def _keep_in_mind(self) -> None:
        """Find what moves, and forget what was said of slots that stay or have moved."""
        pairs = enumerate(zip(self.owners, self.wanted, strict=True))
        self._moving = {number for number, (owner, wanted) in pairs if owner != wanted}
        for peer in self.peers.values():
            over = peer.released - self._moving
            for slots in (peer.revoked, peer.told, peer.released):
                slots -= over

    def _is_stranger(self, peer: Peer, session: str) -> bool:
        """Tell whether a session is of a time before the member was let go of and came back."""
        reign, _, number = session.partition("-")
        if not session or reign != str(self._reign):
            return bool(session and peer.since)
        return int(number) < peer.since

    def _has_lost(self, peer: Peer, beat: Beat) -> bool:
        """Tell whether something did not arrive, or this is the first that is heard of a member."""
        if not peer.session:
            return True
        if beat.session != self.session(peer):
            return beat.answered >= peer.renewed  # else it has not heard yet of this session
        return beat.reports != peer.reports or beat.next <= peer.marks.get(beat.answered, 0)

    def _renew(self, peer: Peer) -> list[Entry]:
        """Begin a session: return all that a member has not reported, in order."""
        self._sessions += 1
        again = list(peer.has.values())
        peer.session, peer.sent, peer.reports = self._sessions, 0, 0
        peer.has, peer.marks, peer.renewed = {}, {}, peer.beat
        peer.told.clear()  # what it is still to let go of it is told again
        peer.released.clear()
        for entry in again:
            entry.number = self.next_number(peer)
            peer.has[entry.number] = entry
            self._slots[entry.delivery.slot].is_draining = False
        return again
