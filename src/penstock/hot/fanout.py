"""
A message into the outbox of each of its receivers. The reference implementation.

Of all that a session and a subscription are, delivery needs to know little: the
`Outlet` of the one and the `Receiver` of the other. They are classes of their own
so that the compiled twin has these few fields at hand, and finds no Python on the
way of a message that came alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from penstock.hot.wire import Op, delivery_line

SHARED_BYTES = 512
"""From this size on, one more buffer in a system call is cheaper than a copy of the payload."""


class Outlet:
    """
    Where messages leave to one peer: what it is owed, and how much that is.

    An entry of the outbox is encoded bytes, or `(sid, pieces)`: encoded only when it
    is written, so that a message on its way to a thousand subscribers is held once.
    """

    __slots__ = (
        "_congested",
        "_dirty",
        "congested_bytes",
        "is_dirty",
        "is_stuck",
        "out_bytes",
        "out_messages",
        "outbox",
        "outbox_bytes",
    )

    def __init__(self, congested_bytes: int, dirty: list[Any], congested: list[Any]) -> None:
        self.outbox: list[Any] = []
        self.outbox_bytes = self.out_messages = self.out_bytes = 0
        self.congested_bytes = congested_bytes
        self.is_dirty = False
        """Whether it is among the dirty, for whom something new waits."""
        self.is_stuck = False
        """Whether the peer takes next to nothing, so that nobody need be slowed down for it."""
        self._dirty = dirty
        self._congested = congested

    def enqueue(self, entry: Any, size: int, messages: int = 0, payload_bytes: int = 0, /) -> None:
        """Owe the peer `size` more bytes."""
        self.outbox.append(entry)
        self.outbox_bytes += size
        self.out_messages += messages
        self.out_bytes += payload_bytes
        self.mark_dirty()
        if self.outbox_bytes > self.congested_bytes and not self.is_stuck:
            self._congested.append(self)

    def mark_dirty(self) -> None:
        """Be written at the end of this tick."""
        if not self.is_dirty:
            self.is_dirty = True
            self._dirty.append(self)


class Receiver:
    """Whom a message goes to, under which sid, and how many went there."""

    __slots__ = ("delivered", "session", "sid")

    def __init__(self, session: Any, sid: bytes) -> None:
        self.session = session
        """The outlet it is reached through; None for a handler inside the server."""
        self.sid = sid
        self.delivered = 0


Group: TypeAlias = tuple[Receiver, ...]
Ways: TypeAlias = tuple[tuple[tuple[bytes, Group], ...], Group, tuple[Group, ...]]
"""Those who share a sid, those who do not, and the members of each queue."""


class Routed(Protocol):
    """What a subject's route has to say."""

    @property
    def ways(self) -> Ways | None:
        """All its receivers, if there are any and none of them needs care."""


def fan_out_each(
    publishes: Sequence[Op], routes: Mapping[bytes, Routed], random: Callable[[], float], /
) -> int:
    """
    Deliver messages one by one from the front, while that serves them best; return how many.

    A message goes alone if it came alone, and has a queue among its receivers or
    other receivers than the next one. Its route must be known.
    """
    following = routes.get(publishes[0][1]) if publishes else None
    for index, publish in enumerate(publishes):
        route = following
        has_next = index + 1 < len(publishes)
        following = routes.get(publishes[index + 1][1]) if has_next else None
        ways = route.ways if route is not None else None
        if (
            ways is None
            or len(publish[5]) != publish[4] + 2
            or (route is following and not ways[2])
        ):
            return index
        fan_out(*ways, publish, random)
    return len(publishes)


def fan_out(
    shared: tuple[tuple[bytes, Group], ...],
    single: Group,
    queues: tuple[Group, ...],
    publish: Op,
    random: Callable[[], float],
    /,
) -> None:
    """
    Deliver one message: to those who share a sid, to those who do not, to one of each queue.

    What is sent to the same sid is encoded once, and a long payload not copied at all.
    """
    _, subject, reply, header_bytes, size, data = publish
    if not 0 <= header_bytes <= size == len(data) - 2:
        raise ValueError("the sizes of a publish do not fit its data")
    before, after = delivery_line(subject, reply, header_bytes, size)
    is_shared = size >= SHARED_BYTES
    if not is_shared:
        after += data
    chosen = [members[int(random() * len(members))] for members in queues]
    groups = [*shared, *((each.sid, (each,)) for each in (*single, *chosen))]
    for sid, receivers in groups:
        encoded = before + sid + after
        encoded_bytes = len(encoded) + len(data) if is_shared else len(encoded)
        for receiver in receivers:
            receiver.delivered += 1
            outlet = receiver.session
            if is_shared:
                outlet.outbox.append(encoded)
            outlet.enqueue(data if is_shared else encoded, encoded_bytes, 1, size)
