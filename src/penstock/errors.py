"""
Every error Penstock raises on purpose. The class says whose fault it is.

PenstockError
├── ProtocolError      the peer broke the wire protocol: `-ERR`, then close
├── PermissionDenied   the peer may not do that: `-ERR`, the connection stays
├── ConfigError        the operator's settings do not make sense
├── StoreError         the disk failed us, or what is on it cannot be trusted
├── JetStreamError     a JetStream API request failed: carries the wire codes
├── ClientError        our own client could not do what it was asked
│   ├── ConnectFailed     no server could be reached, or all refused us
│   ├── ConnectionClosed  the client is closed, for good
│   ├── ConnectionLost    the connection broke before the answer: the outcome is unknown
│   ├── RequestTimeout    no answer in time: the outcome is unknown
│   ├── NoResponders      nobody listens on that subject
│   ├── ServerError       the server said `-ERR`
│   ├── SlowConsumer      a subscription's queue was full, messages were dropped
│   ├── OutboxFull        the bound on unsent bytes is reached
│   ├── MessageTooLarge   the broker takes no message of that size
│   └── BatchFailed       some messages of a batch were not stored: carries each failure
└── BusError           the event bus could not do what it was asked
    ├── BusClosed         the bus is closed, or was never opened
    ├── InvalidEnvelope   an event breaks the rules of an envelope, or cannot be read
    ├── TopicMismatch     a topic on the broker is not as it was declared: carries the report
    ├── AlreadyHandled    a second handler for the same topic
    ├── HandlerTimeout    a handler took longer than it may
    ├── DeadlineExceeded  there was no room for a message before its deadline
    └── MissingExtra      a package that this setting needs is not installed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

CAUSE_CHARACTERS_MAX = 500


class PenstockError(Exception):
    """The root of all our errors."""


def reason(error: Exception) -> str:
    """Return why something failed, in the operating system's words if it gave a reason."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or repr(error)


def cause(error: BaseException) -> str:
    """Return what went wrong and where, in one line for the log."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f" ({trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{error!r}"[:CAUSE_CHARACTERS_MAX] + place


class ProtocolError(PenstockError):
    """The peer broke the wire protocol."""


class PermissionDenied(PenstockError):
    """The peer may not do what it asked for."""


class ConfigError(PenstockError):
    """A setting is unknown or does not make sense; the text names it and the remedy."""


class StoreError(PenstockError):
    """Stored data could not be written, or could not be trusted when read."""


class ApiError(NamedTuple):
    """One row of the table of JetStream API errors; the description may have `{fields}`."""

    code: int
    err_code: int
    description: str


class JetStreamError(PenstockError):
    """A JetStream API request failed."""

    def __init__(self, error: ApiError, **values: object) -> None:
        self.code = error.code
        self.err_code = error.err_code
        self.description = error.description.format(**values) if values else error.description
        super().__init__(f"{self.description} ({self.code}/{self.err_code})")

    @property
    def document(self) -> dict[str, object]:
        """The error object of API answers and PubAcks."""
        return {
            "code": self.code,
            "err_code": self.err_code,
            "description": self.description,
        }

    @property
    def is_not_found(self) -> bool:
        """Whether the stream, consumer or message asked for does not exist."""
        return self.code == 404


class ClientError(PenstockError):
    """The client could not do what it was asked."""


class ConnectFailed(ClientError):
    """No server could be reached, or all refused us; the text says why for each server."""

    is_final = False
    """Whether every server we reached refused us, so that a retry would not help."""
    causes: Sequence[BaseException] = ()
    """The error of each server that was tried."""


class ConnectionClosed(ClientError):
    """The client is closed for good."""


class ConnectionLost(ClientError):
    """The connection broke before the answer came: the outcome is unknown."""


class RequestTimeout(ClientError):
    """No answer came in time: the outcome is unknown."""


class NoResponders(ClientError):
    """Nobody listens on the subject."""


class ServerError(ClientError):
    """The server said `-ERR`."""


class SlowConsumer(ClientError):
    """A subscription's queue was full, so messages were dropped."""


class OutboxFull(ClientError):
    """The bound on unsent bytes is reached; `await publish` would have waited."""


class MessageTooLarge(ClientError):
    """The broker takes no message of that size."""


class BatchFailed(ClientError):
    """Some messages of a batch were not stored."""

    def __init__(self, failures: Mapping[int, Exception], acks: Sequence[Any]) -> None:
        self.failures = failures
        """Index in the batch → what went wrong."""
        self.acks = acks
        """One ack per message, None where it failed."""
        first = next(iter(failures))
        super().__init__(
            f"{len(failures)} of {len(acks)} messages failed, the first at {first}: "
            f"{failures[first]}"
        )


class BusError(PenstockError):
    """The event bus could not do what it was asked."""


class BusClosed(BusError):
    """The bus is closed, or was never opened."""


class InvalidEnvelope(BusError):
    """An event breaks the rules of an envelope, or cannot be read as one."""


class TopicMismatch(BusError):
    """A topic on the broker is not as it was declared."""

    def __init__(self, report: Any) -> None:
        self.report = report
        """The expected settings, and the actual ones."""
        super().__init__(str(report))


class AlreadyHandled(BusError):
    """A second handler for the same topic on one bus."""


class HandlerTimeout(BusError):
    """A handler took longer than it may."""


class DeadlineExceeded(BusError):
    """There was no room for a message before its deadline; it was not published."""


class MissingExtra(BusError, ImportError):
    """A package that a setting needs is not installed; the text names the extra."""
