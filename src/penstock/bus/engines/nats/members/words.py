"""
The messages between the members of a service, over core NATS.

| subject                                             | from   | content                       |
|-----------------------------------------------------|--------|-------------------------------|
| `events-members.S.L.beat`                           | member | a sign of life: `Beat`        |
| `events-members.S.L.report`                         | member | its finished events: `Report` |
| `events-members.S.M.grant`                          | leader | the member's rights: `Grant`  |
| `events-members.S.M.revoke.SESSION.NUMBER`          | leader | slots to release              |
| `events-members.S.M.event.SESSION.NUMBER.SLOT.T`    | leader | an event of topic `T`         |

`S` is the service, `M` a member and `L` the leader. An event travels as the server sent it.
Its reply is the ack subject without the common prefix, so the event does not grow.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.protocol import wellknown


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """A member's word that it lives, and how far it is."""

    member: str
    number: int
    answered: int
    """The last beat that it has heard an answer to."""
    session: str
    """Its session; empty if it has no events."""
    life: int
    """Grows each time it has let go of everything."""
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
    is_whole: bool
    """Whether all that the server had waited for an ack of was handed out before."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """The events a member is done with, by their numbers in the session."""

    member: str
    session: str
    number: int
    done: list[int]
    back: list[int]
    """Events it has not begun; other members may have them."""
    released: list[int]
    """Slots of which it has nothing any more."""


class Handed(NamedTuple):
    """An event that a member was handed."""

    session: str
    number: int
    slot: int
    topic: str


def event_subject(base: str, session: str, number: int, slot: int, topic: str) -> bytes:
    """Return where an event is sent."""
    return f"{base}.event.{session}.{number}.{slot}.{topic}".encode()


ACKED_AT = wellknown.ACK.encode()
"""The prefix left out of the reply: a client may not use a subject with this prefix as one."""


def read_event(subject: bytes) -> Handed:
    """Return what the subject of an event says, behind `event`."""
    session, number, slot, topic = subject.decode(errors="replace").split(".", 3)
    return Handed(session, int(number), int(slot), topic)
