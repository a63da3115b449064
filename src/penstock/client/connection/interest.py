"""What the server is told of a subscription, and what has to be told again to the next one."""

from __future__ import annotations

from collections.abc import Callable

from penstock.hot.wire import Op


class Interest:
    """A subject we want messages of. `receive` gets them, as many at once as were read."""

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
        """How many messages we want in all; 0 is no limit."""
        self.draining = False
        """The server was told to stop; what it sent before still comes."""

    def subscribe_lines(self) -> bytes:
        """Return the operations that make a server know of this interest."""
        if self.draining:
            return b""
        queue = b" " + self.queue if self.queue else b""
        line = b"SUB %b%b %b\r\n" % (self.subject, queue, self.sid)
        if not self.messages_max:
            return line
        # A server counts from its own SUB, so a new one is told what is still missing.
        return line + b"UNSUB %b %d\r\n" % (self.sid, self.messages_max - self.received)

    def admit(self, operations: list[Op]) -> list[Op]:
        """Count what came, and leave out what is more than we asked for."""
        if self.messages_max:
            operations = operations[: self.messages_max - self.received]
        self.received += len(operations)
        return operations

    @property
    def complete(self) -> bool:
        """Whether every message we wanted has come."""
        return 0 < self.messages_max <= self.received
