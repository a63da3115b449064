"""
The messages between the members of a service.

`post` sends them over core NATS:

| subject                                             | from   | content                       |
|-----------------------------------------------------|--------|-------------------------------|
| `events-members.S.L.beat`                           | member | a sign of life: `Beat`        |
| `events-members.S.L.report`                         | member | its finished events: `Report` |
| `events-members.S.M.grant`                          | leader | the member's rights: `Grant`  |
| `events-members.S.M.revoke`                         | leader | slots to release: `Revoke`    |
| `events-members.S.M.event.SESSION.NUMBER.SLOT.T`    | leader | an event of topic `T`         |

`S` is the service, `M` a member and `L` the leader. An event travels as the server sent it.
Its reply is the ack subject without the common prefix, so the event does not grow.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

from penstock.bus.engine import Delivery
from penstock.protocol import wellknown


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """A member's word that it lives, and how far it is."""

    member: str
    number: int
    answered: int
    """The last beat that it has heard an answer to."""
    session: str
    """Its session; empty if it has no events."""
    next: int
    """The number of the session that it waits for."""
    reports: int
    """How many reports it has sent in the session."""
    patterns: list[str]
    window: int
    """How much it takes at once."""
    is_leaving: bool = False
    is_gone: bool = False


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The leader's answer to a beat."""

    leader: str
    beat: int
    for_s: float
    """How long after that beat the member may begin with what it has."""
    session: str
    """Empty: the leader does not know the member, whose keys others have."""
    reports: int
    """How many reports of the session it has heard."""
    may_go: bool
    """Whether nothing is left at a member that leaves: no slot, and no event."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """The events a member is done with, by their numbers in the session."""

    member: str
    session: str
    number: int
    done: list[int]
    back: list[int]
    """Events it has not begun, or that failed; other members may have them."""
    released: list[int]
    """Slots of which it begins nothing any more."""


class Revoke(msgspec.Struct, frozen=True, array_like=True):
    """Slots that a member has to release."""

    session: str
    number: int
    slots: list[int]


class Event(NamedTuple):
    """An event for a member."""

    session: str
    number: int
    slot: int
    delivery: Delivery


Word: TypeAlias = Beat | Grant | Report | Revoke | Event


class Handed(NamedTuple):
    """The data in the subject of an event."""

    session: str
    number: int
    slot: int
    topic: str


def event_subject(base: str, event: Event) -> bytes:
    """Return where an event is sent."""
    session, number, slot, delivery = event
    return f"{base}.event.{session}.{number}.{slot}.{delivery.topic}".encode()


ACKED_AT = wellknown.ACK.encode()
"""The prefix left out of the reply: a client may not use a subject with this prefix as one."""


def read_event(subject: bytes) -> Handed:
    """Return what the subject of an event says, behind `event`."""
    session, number, slot, topic = subject.decode(errors="replace").split(".", 3)
    return Handed(session, int(number), int(slot), topic)
