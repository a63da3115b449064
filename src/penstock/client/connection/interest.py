"""A subscription as servers see it, and how to repeat it to the next server."""

from __future__ import annotations

from collections.abc import Callable

from penstock.hot.wire import Op


class Interest:
    """A subject whose messages we want. `receive` gets all those of one read together."""

    __slots__ = (
        "draining",
        "ended",
        "messages_max",
        "queue",
        "receive",
        "received",
        "sid",
        "subject",
    )

    def __init__(
        self,
        subject: bytes,
        sid: bytes,
        *,
        queue: bytes,
        receive: Callable[[list[Op]], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self.subject = subject
        self.sid = sid
        self.queue = queue
        self.receive = receive
        self.ended = ended
        """Called once, when no more messages will come."""
        self.received = 0
        self.messages_max = 0
        """The number of messages wanted in total; 0 is no limit."""
        self.draining = False
        """The server was asked to stop; messages it sent before still arrive."""

    def subscribe_lines(self) -> bytes:
        """Return the operations that tell a server about this interest."""
        if self.draining:
            return b""
        queue = b" " + self.queue if self.queue else b""
        line = b"SUB %b%b %b\r\n" % (self.subject, queue, self.sid)
        if not self.messages_max:
            return line
        # A server counts from its own SUB, so a new one gets the number still missing.
        return line + b"UNSUB %b %d\r\n" % (self.sid, self.messages_max - self.received)

    def admit(self, operations: list[Op]) -> list[Op]:
        """Count the messages received, and drop those beyond the number we asked for."""
        if self.messages_max:
            operations = operations[: self.messages_max - self.received]
        self.received += len(operations)
        return operations

    @property
    def complete(self) -> bool:
        """Whether every message we wanted has arrived."""
        return 0 < self.messages_max <= self.received
