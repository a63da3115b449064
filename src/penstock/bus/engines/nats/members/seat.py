"""
The state of a member that does not lead: its leader, and the events it was handed.

A member accepts the messages of a session in the order of their numbers, and none after a
gap. Its next beat tells the leader, which sends everything again in a new session.

The leader grants the member a time during which it may begin events. The time counts from
the beat that the grant answers, by a clock that keeps running while the process is frozen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from penstock.bus.engine import Delivery
from penstock.bus.engines.nats.members.words import Beat, Grant, Report

BEATS_REMEMBERED_MAX = 16


class Seat:
    """A member's place in its service."""

    def __init__(self, me: str, *, window: int) -> None:
        self.me = me
        self.leader = ""
        self.session = ""
        """Its session at the leader; empty while it has no events."""
        self.is_leaving = False
        self.may_go = False
        """Whether the leader says that nothing is left here, since this is leaving."""
        self._window = window
        self._next = 1
        self._beats = self._answered = self._reports = 0
        self._sent: dict[int, tuple[float, str]] = {}
        """When each beat was sent, and the session at that time."""
        self._numbers: dict[Delivery, int] = {}
        self._unheard: dict[int, list[Delivery]] = {}
        """Events reported as done, until the leader confirms the report; by report."""

    def beat(self, patterns: Sequence[str], now_s: float, *, is_gone: bool = False) -> Beat:
        """Return the next beat for the leader."""
        self._beats += 1
        self._sent[self._beats] = now_s, self.session
        if len(self._sent) > BEATS_REMEMBERED_MAX:
            del self._sent[next(iter(self._sent))]
        return Beat(
            member=self.me,
            number=self._beats,
            answered=self._answered,
            session=self.session,
            next=self._next,
            reports=self._reports,
            patterns=list(patterns),
            window=self._window,
            is_leaving=self.is_leaving,
            is_gone=is_gone,
        )

    def granted(self, grant: Grant) -> float | None:
        """
        Return the time until which it may begin events; None if the leader does not know it.

        A grant that answers a beat of an earlier session gives nothing: the member may have
        been taken for dead in between, and what it is said to have then is not what it has.
        """
        sent_s, session = self._sent.get(grant.beat, (0.0, None))
        if session is None or self.session not in (session, grant.session):
            return 0.0
        if not grant.session:
            return None if session else 0.0
        self._answered = max(self._answered, grant.beat)
        if grant.session != self.session:
            self._begin(grant.session)
        for number in [one for one in self._unheard if one <= grant.reports]:
            del self._unheard[number]
        self.may_go = self.is_leaving and grant.may_go
        return sent_s + grant.for_s

    def is_next(self, session: str, number: int) -> bool:
        """Return whether a message is the next one, and then expect the one after it."""
        if session != self.session or number != self._next:
            return False
        self._next += 1
        return True

    def hand(self, delivery: Delivery, number: int) -> None:
        """Remember the number of a delivery."""
        self._numbers[delivery] = number

    def knows(self, delivery: Delivery) -> bool:
        """Tell whether the leader counts on a delivery in this session."""
        return delivery in self._numbers

    def of_slots(self, slots: Collection[int]) -> list[Delivery]:
        """Return the deliveries of some slots that the leader expects from this member."""
        return [one for one in self._numbers if one.slot in slots]

    def report(
        self,
        *,
        done: Iterable[Delivery] = (),
        numbers: Collection[int] = (),
        back: Iterable[Delivery] = (),
        released: Collection[int] = (),
    ) -> Report:
        """Return the report on deliveries, and on numbers that were done before."""
        done = list(done)
        self._reports += 1
        self._unheard[self._reports] = done
        returned = [one for delivery in back if (one := self._numbers.pop(delivery, 0))]
        finished = [one for delivery in done if (one := self._numbers.pop(delivery, 0))]
        return Report(
            self.me, self.session, self._reports, [*numbers, *finished], returned, list(released)
        )

    @property
    def unheard(self) -> list[Delivery]:
        """Events that are done, but the leader may not know it."""
        return [one for some in self._unheard.values() for one in some]

    @property
    def is_answered(self) -> bool:
        """Whether the leader has answered the last beat."""
        return self._answered == self._beats

    def follow(self, leader: str) -> None:
        """Follow another leader, and wait for its word."""
        self.leader = leader
        self._answered = 0
        self.may_go = False

    def let_go(self) -> None:
        """Be without a session."""
        self._begin("")

    def _begin(self, session: str) -> None:
        # The leader sends again what it has not heard of: it is known, and reported again.
        self.session, self._next, self._reports = session, 1, 0
        self._numbers.clear()
        self._unheard.clear()
        self.may_go = False
