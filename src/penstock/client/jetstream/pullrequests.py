"""
The pull requests of one consumer, without I/O: what to send, and what its answers mean.

A request asks for a number of messages. Messages and status lines about requests arrive at
its reply subject: a message has a reply subject of its own for the ack, a status line has
none. `outstanding` is the number of messages that requests may still bring.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.jetstream.api import encode
from penstock.client.jetstream.status import NextStep, read_status, unfilled
from penstock.hot.wire import Op


class PullRequests:
    """The requests to one consumer that may still be answered."""

    def __init__(self, prefix: str, stream: str, consumer: str, inbox: bytes) -> None:
        self.subject = f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}".encode()
        self.inbox = inbox
        """The prefix of all reply subjects; the number of the request follows."""
        self.outstanding = 0
        self.reply = b""
        """The reply subject of the newest request."""
        self._count = 0

    def ask(self, batch: int, **options: object) -> bytes:
        """Return the body of a request; send it to `subject`, with `reply`."""
        self.outstanding += batch
        self._count += 1
        self.reply = self.inbox + b"%d" % self._count
        return encode({"batch": batch, **options})

    def arrived(self, messages: int) -> None:
        """Count messages. A server may send more than it was asked for."""
        self.outstanding = max(0, self.outstanding - messages)

    def read(self, status: Op) -> tuple[NextStep, Exception]:
        """Read a status line; return the next step, and the error of a caller that gives up."""
        outcome, error = read_status(status)
        if outcome is NextStep.OVER:
            self.arrived(unfilled(status))
        return outcome, error

    def forget(self) -> None:
        """Expect nothing more: the server has lost the requests, or the holder gave them up."""
        self.outstanding = 0


def split(operations: Iterable[Op]) -> tuple[list[Op], list[Op]]:
    """Return the messages, and the status lines."""
    messages: list[Op] = []
    statuses: list[Op] = []
    for operation in operations:
        (messages if operation[3] else statuses).append(operation)
    return messages, statuses


def nanoseconds(seconds: float) -> int:
    """Return a duration in nanoseconds, as the API expects it."""
    return round(seconds * 1_000_000_000)
