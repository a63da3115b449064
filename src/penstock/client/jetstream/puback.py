"""JetStream's answer to a publish: the message is stored, or why it is not."""

from __future__ import annotations

from typing import Any

from penstock.client.jetstream.api import decode, field, read_object
from penstock.client.messages import status_of
from penstock.errors import ClientError, JetStreamError, NoResponders, PenstockError
from penstock.hot.wire import Op


class PubAck:
    """JetStream's confirmation that a message is stored. Parsed on first access."""

    __slots__ = ("_fields", "_payload")

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._fields: dict[str, Any] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """All fields of the server's answer."""
        if self._fields is None:
            self._fields = read_object(self._payload)
        return self._fields

    @property
    def stream(self) -> str:
        """The stream that stored the message."""
        return field(self.fields, "stream", str)

    @property
    def sequence(self) -> int:
        """The sequence of the message in the stream."""
        return field(self.fields, "seq", int)

    @property
    def duplicate(self) -> bool:
        """Whether a message with the same id was already stored."""
        return self.fields.get("duplicate", False)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"PubAck({self._payload.decode(errors='replace')})"


def is_ack(operation: Op) -> bool:
    """Return whether an answer confirms that the message is stored."""
    payload = operation[5]
    # A quote inside a JSON string is escaped, so these never match part of a name.
    return not operation[4] and b'"error":' not in payload and b'"stream":' in payload


def refusal(operation: Op) -> PenstockError:
    """Return the error in an answer that is not an ack."""
    if status_of(operation)[0] == 503:
        return NoResponders("no stream stores this subject")
    try:
        decode(operation[5][operation[4] :])
    except JetStreamError as error:
        return error
    except ClientError:
        pass
    return ClientError(f"not an ack: {operation[5][:80]!r}")
