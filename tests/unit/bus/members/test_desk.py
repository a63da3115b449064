"""What the leader of a service keeps, and what a member remembers: without a server."""

from __future__ import annotations

from collections import deque
from typing import Any

from penstock.bus.engine import Delivery
from penstock.bus.engines.nats.members.desk import Desk, Entry, Peer
from penstock.bus.engines.nats.members.seat import Seat
from penstock.bus.engines.nats.members.slots import SLOTS, slot_of
from penstock.bus.engines.nats.members.words import Grant

TAKEOVER_S = 3.0
TOPIC = "t"


class Scene:
    """A leader, and members that it hears of by hand."""

    def __init__(self, *, window: int = 100, is_exclusive: bool = False) -> None:
        self.held: dict[Delivery, None] = {}
        self.window = window
        self.desk = self.reign(1, {}, is_exclusive=is_exclusive)
        self.seats: dict[str, Seat] = {}
        self.sequence = 0

    def reign(self, number: int, table: dict[str, list[int]], **settings: Any) -> Desk:
        settings = {"is_exclusive": False} | settings
        desk = Desk(
            "leader",
            reign=number,
            window=self.window,
            own=deque(),
            slot_of=lambda one: slot_of(one.payload.decode(), one.sequence),
            held=lambda: list(self.held),
            **settings,
        )
        desk.begin(table, 0.0)
        desk.may_move = True
        self.desk = desk
        self.write()
        return desk

    def write(self) -> None:
        """Write down what can be."""
        while self.desk.has_to_write:
            self.desk.stored(self.desk.table())

    def events(self, *keys: str) -> list[Delivery]:
        """Return events that were fetched."""
        found = []
        for key in keys:
            self.sequence += 1
            found.append(Delivery(TOPIC, key.encode(), b"", self.sequence))
        return found

    def beat(self, name: str, now_s: float = 0.0, **changes: bool) -> tuple[Peer | None, list[Any]]:
        """Have a member tell that it lives, and hear the answer."""
        seat = self.seats.setdefault(name, Seat(name, window=self.window))
        seat.is_leaving = changes.pop("is_leaving", seat.is_leaving)
        beat = seat.beat([TOPIC], now_s, **changes)
        peer, again = self.desk.heard(beat, now_s)
        session = "" if peer is None else self.desk.session(peer)
        seat.granted(
            Grant(
                leader="leader",
                beat=beat.number,
                for_s=2.0,
                session=session,
                reports=0 if peer is None else peer.reports,
                may_go=peer is not None and self.desk.may_go(peer),
            )
        )
        return peer, again

    def hand(self, entries: list[Entry]) -> list[Delivery]:
        """Have members take what is sent to them; return what was taken."""
        taken = []
        for entry in entries:
            assert entry.peer is not None
            seat = self.seats[entry.peer.name]
            if seat.is_next(self.desk.session(entry.peer), entry.number):
                seat.hand(entry.delivery, entry.number)
                taken.append(entry.delivery)
        return taken

    def release(self) -> None:
        """Have everybody let go of what is to move, and write it down."""
        for peer, slots in list(self.desk.revocations()):
            if peer is self.desk.me:
                self.desk.released(peer, slots)
            else:
                assert self.seats[peer.name].is_next(
                    self.desk.session(peer), self.desk.next_number(peer)
                )
                self.desk.reported(self.seats[peer.name].report(released=slots))
        self.write()

    def join(self, *names: str) -> None:
        for name in names:
            self.beat(name)
        self.release()

    def key_at(self, name: str) -> str:
        """Return a key whose slot a member has."""
        return next(
            key for key in map(str, range(10_000)) if self.desk.owners[slot_of(key, 0)] == name
        )


def test_one_that_is_alone_has_everything_and_looks_at_nothing() -> None:
    scene = Scene()
    assert scene.desk.is_plain
    events = scene.events("a", "b", "")
    scene.desk.take(events)

    assert events == list(scene.desk.own)
    assert [] == scene.desk.hand_out()


def test_events_go_to_whoever_has_their_slot() -> None:
    scene = Scene()
    scene.join("one", "two")
    keys = {name: scene.key_at(name) for name in ("leader", "one", "two")}
    events = scene.events(*keys.values(), *keys.values())
    scene.desk.take(events)
    sent = scene.desk.hand_out()

    names = ["one", "two", "one", "two"]
    assert names == [one.peer.name for one in sent if one.peer is not None]
    assert [events[0], events[3]] == list(scene.desk.own)
    assert [one.delivery for one in sent] == scene.hand(sent)


def test_a_slot_moves_once_what_runs_is_done_and_what_waits_comes_back_in_order() -> None:
    scene = Scene()
    scene.join("one")
    slots = scene.desk.table()["one"]
    key = next(k for k in map(str, range(10_000)) if slot_of(k, 0) == slots[-1])
    first, second, third = scene.events(key, key, key)
    scene.desk.take([first, second])
    scene.hand(scene.desk.hand_out())
    for number in range(2, 20):
        scene.beat(str(number))
        if scene.desk.wanted[slot_of(key, 0)] != "one":
            break
    taken_by = scene.desk.wanted[slot_of(key, 0)]
    (_, revoked), *_ = [one for one in scene.desk.revocations() if one[0].name == "one"]
    assert slot_of(key, 0) in revoked
    scene.desk.take([third])
    scene.write()
    assert "one" == scene.desk.owners[slot_of(key, 0)], "it has not let go"

    seat = scene.seats["one"]
    scene.desk.reported(seat.report(done=[first]))
    scene.write()
    assert "one" == scene.desk.owners[slot_of(key, 0)], "the second is still there"
    scene.desk.reported(seat.report(back=[second], released=revoked))
    scene.write()

    assert taken_by == scene.desk.owners[slot_of(key, 0)]
    sent = scene.desk.hand_out()
    handed = [one.delivery for one in sent] or list(scene.desk.own)
    assert [second, third] == handed


def test_what_a_silent_member_has_goes_to_others_in_order() -> None:
    scene = Scene()
    scene.join("one")
    key = scene.key_at("one")
    events = scene.events(key, key, key)
    scene.desk.take(events)
    scene.hand(scene.desk.hand_out())
    assert [] == scene.desk.silent(TAKEOVER_S, TAKEOVER_S)
    (gone,) = scene.desk.silent(TAKEOVER_S + 0.1, TAKEOVER_S)
    scene.release()
    scene.desk.hand_out()

    assert ("one", 1) == (gone.name, scene.desk.takeovers)
    assert events == list(scene.desk.own)
    assert ["leader"] * SLOTS == scene.desk.owners


def test_one_that_was_taken_for_dead_is_told_so_and_may_come_back_with_nothing() -> None:
    scene = Scene()
    scene.join("one")
    scene.desk.silent(TAKEOVER_S + 0.1, TAKEOVER_S)
    before = scene.seats["one"].session
    peer, again = scene.beat("one", TAKEOVER_S + 1)
    assert (None, []) == (peer, again)

    scene.seats["one"].let_go()
    peer, _ = scene.beat("one", TAKEOVER_S + 1)
    assert peer is not None
    assert scene.seats["one"].session not in ("", before)
    stale = Seat("one", window=1)
    stale.session = before
    assert [] == scene.desk.reported(stale.report(done=scene.events("a")))


def test_what_is_lost_on_the_way_is_sent_again_and_nothing_behind_it_is_taken() -> None:
    scene = Scene()
    scene.join("one")
    key = scene.key_at("one")
    first, second, third = scene.events(key, key, key)
    scene.desk.take([first, second, third])
    sent = scene.desk.hand_out()
    assert [first] == scene.hand([sent[0], sent[2]]), "the third comes too early"
    scene.beat("one")
    _, again = scene.beat("one")

    assert [first, second, third] == [one.delivery for one in again]
    assert [first, second, third] == scene.hand(again)
    _, again = scene.beat("one")
    assert [] == again


def test_a_report_that_is_lost_is_noticed() -> None:
    scene = Scene()
    scene.join("one")
    key = scene.key_at("one")
    first, second = scene.events(key, key)
    scene.desk.take([first, second])
    scene.hand(scene.desk.hand_out())
    seat = scene.seats["one"]
    seat.report(done=[first])
    assert [] == scene.desk.reported(seat.report(done=[second])), "one is missing before it"
    _, again = scene.beat("one")

    assert [first, second] == [one.delivery for one in again]
    scene.hand(again)
    scene.desk.reported(seat.report(done=[first, second]))
    _, again = scene.beat("one")
    assert ([], []) == (again, seat.unheard)


def test_a_member_gets_no_more_than_it_takes_and_the_others_go_on() -> None:
    scene = Scene(window=2)
    scene.join("one")
    slow, own = scene.key_at("one"), scene.key_at("leader")
    events = scene.events(slow, slow, slow, own)
    scene.desk.take(events)
    sent = scene.desk.hand_out()
    assert (events[:2], [events[3]]) == ([one.delivery for one in sent], list(scene.desk.own))
    scene.hand(sent)
    scene.desk.reported(scene.seats["one"].report(done=[events[0]]))

    assert [events[2]] == [one.delivery for one in scene.desk.hand_out()]


def test_who_leads_next_sends_all_to_those_who_have_it_before_anything_moves() -> None:
    scene = Scene()
    scene.join("one")
    key = scene.key_at("one")
    table = scene.desk.table() | {"gone": []}
    del table["leader"]
    first, second = scene.events(key, key)
    desk = scene.reign(2, table)
    desk.may_move = False
    desk.take([first, second])
    assert [] == desk.hand_out(), "nothing was heard of it yet"
    scene.seats["one"].session = "1-1"
    peer, again = scene.beat("one")
    sent = desk.hand_out()

    assert peer is not None
    assert [] == again
    assert [first, second] == [one.delivery for one in sent]
    assert "2-1" == scene.seats["one"].session
    assert [] == list(desk.revocations())


def test_one_that_leaves_gets_nothing_more_and_its_slots_go_to_the_others() -> None:
    scene = Scene()
    scene.join("one")
    key = scene.key_at("one")
    scene.beat("one", is_leaving=True)
    (event,) = scene.events(key)
    scene.desk.take([event])
    assert [] == scene.desk.hand_out()
    scene.release()
    assert [] == scene.desk.hand_out()

    assert [event] == list(scene.desk.own)
    assert ["leader"] * SLOTS == scene.desk.owners


def test_the_leader_leaves_its_slots_to_the_others_and_leads_on() -> None:
    scene = Scene()
    events = scene.events("a", "b")
    scene.held.update(dict.fromkeys(events))
    scene.desk.take(events)
    scene.join("one")
    scene.desk.retire()
    scene.desk.own.clear()
    scene.desk.back(events)
    scene.release()
    sent = scene.desk.hand_out()

    assert ["one"] * SLOTS == scene.desk.owners
    assert events == [one.delivery for one in sent]


def test_what_has_no_key_is_spread_too() -> None:
    scene = Scene(window=SLOTS)
    scene.join("one")
    scene.desk.take(scene.events(*[""] * SLOTS))

    assert (SLOTS // 2, SLOTS // 2) == (len(scene.desk.hand_out()), len(scene.desk.own))


def test_one_that_leaves_is_asked_for_what_an_earlier_leader_may_have_given_it() -> None:
    scene = Scene()
    scene.join("one")
    key, slot = scene.key_at("one"), slot_of(scene.key_at("one"), 0)
    done, unknown = scene.events(key, key)
    desk = scene.reign(2, scene.desk.table())
    desk.may_move = False
    desk.take([done, unknown])
    desk.may_move = True
    scene.seats["one"].session = "1-1"
    scene.beat("one", is_leaving=True)
    scene.release()
    assert {"one"} == {desk.owners[slot]} == set(desk.owners) - {"leader"}, "it is asked first"
    assert [done, unknown] == scene.hand(desk.hand_out())
    peer, _ = scene.beat("one")
    assert peer is not None
    assert not desk.may_go(peer)
    desk.reported(scene.seats["one"].report(done=[done], back=[unknown]))
    scene.release()

    assert desk.may_go(peer)
    assert [] == desk.hand_out()
    assert [unknown] == list(desk.own)


def test_nothing_is_sent_behind_an_event_that_runs_in_a_slot_that_was_released() -> None:
    """It may fail, and is given back then."""
    scene = Scene()
    scene.join("one")
    key = scene.key_at("one")
    running, behind = scene.events(key, key)
    scene.desk.take([running])
    scene.hand(scene.desk.hand_out())
    peer = scene.desk.peers["one"]
    scene.beat("one", is_leaving=True)
    scene.release()
    scene.beat("one", is_leaving=False)
    scene.desk.take([behind])
    assert "one" == scene.desk.owners[slot_of(key, 0)] == scene.desk.wanted[slot_of(key, 0)]
    assert [] == scene.desk.hand_out()
    scene.desk.reported(scene.seats["one"].report(back=[running]))

    assert [running, behind] == [one.delivery for one in scene.desk.hand_out()]
    assert 2 == len(peer.has)


def test_what_may_be_stored_or_not_is_nobodys_until_that_is_known() -> None:
    scene = Scene()
    scene.beat("one")
    for peer, slots in list(scene.desk.revocations()):
        scene.desk.released(peer, slots)
    table = scene.desk.table()  # it is sent, and its answer is lost
    moved = table["one"][0]
    key = next(k for k in map(str, range(10_000)) if slot_of(k, 0) == moved)
    (event,) = scene.events(key)
    scene.desk.take([event])
    scene.beat("one", is_leaving=True)
    assert ([], []) == (scene.desk.hand_out(), list(scene.desk.own))
    scene.write()
    scene.desk.stored(scene.desk.table())
    scene.release()
    scene.desk.hand_out()

    assert [event] == list(scene.desk.own)


def test_a_beat_of_a_time_before_a_member_came_back_makes_it_begin_anew() -> None:
    """Else it would go on with what it has from then, which others have handled."""
    scene = Scene()
    scene.join("one")
    before = scene.seats["one"].session
    scene.desk.silent(TAKEOVER_S + 0.1, TAKEOVER_S)
    late = Seat("one", window=scene.window)
    scene.desk.heard(late.beat([TOPIC], 0.0), TAKEOVER_S + 1)  # long on its way
    peer, _ = scene.desk.heard(scene.seats["one"].beat([TOPIC], 0.0), TAKEOVER_S + 1)

    assert before
    assert peer is None


def test_of_an_exclusive_service_the_others_get_nothing() -> None:
    scene = Scene(is_exclusive=True)
    scene.join("one")
    events = scene.events("a", "", scene.key_at("leader"))
    scene.desk.take(events)

    assert scene.desk.is_plain
    assert ([], events) == (scene.desk.hand_out(), list(scene.desk.own))


def test_a_member_without_a_handler_leaves_the_event_to_the_leader() -> None:
    scene = Scene()
    scene.join("one")
    (event,) = scene.events(scene.key_at("one"))
    event.topic = "another"
    scene.desk.take([event])

    assert ([], [event]) == (scene.desk.hand_out(), list(scene.desk.own))


def test_a_member_begins_until_the_time_that_is_granted_from_when_it_asked() -> None:
    seat = Seat("one", window=1)
    beat = seat.beat([TOPIC], 100.0)
    grant = Grant(
        leader="leader", beat=beat.number, for_s=2.0, session="1-1", reports=0, may_go=False
    )

    assert 102.0 == seat.granted(grant)
    assert seat.is_answered
