"""Ack subjects, the data in them, and the ack state of a consumer."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from penstock.client.jetstream.api import field
from penstock.errors import ClientError
from penstock.hot.wire import Op

is_ack_subject = re.compile(
    rb"\$JS\.ACK\.(?:[^.]+\.[^.]+\.)?[^.]+\.[^.]+(?:\.[0-9]{1,20}){5}(?:\.[^.]*)?"
).fullmatch
"""Matches the ack subjects of JetStream: two names, or four, and five numbers."""


class State(NamedTuple):
    """The progress of a consumer."""

    floor: int
    last: int
    consumer_sequence: int
    pending: int

    @classmethod
    def of(cls, info: dict[str, Any]) -> State:
        """Read the state; raise ClientError if the server's answer is malformed."""
        floor, delivered = (field(info, name, dict) for name in ("ack_floor", "delivered"))
        state = cls(
            field(floor, "stream_seq", int),
            field(delivered, "stream_seq", int),
            field(delivered, "consumer_seq", int),
            field(info, "num_ack_pending", int),
        )
        if not all(0 <= number < 1 << 64 for number in state):
            raise ClientError(f"an answer is wrong: no consumer is at {state!r:.200}")
        return state


def stream_sequence(operation: Op) -> int:
    """Return the stream sequence of a message."""
    return stream_sequence_of(operation[3])


def stream_sequence_of(handle: bytes) -> int:
    """Return the stream sequence in an ack subject."""
    tokens = handle.split(b".")
    return int(tokens[5 if len(tokens) == 9 else 7])


def place_of(reply: bytes) -> tuple[str, str]:
    """Return the stream and the consumer of a message, from its ack subject."""
    tokens = reply.decode(errors="replace").split(".")
    first = 2 if len(tokens) == 9 else 4
    return tokens[first], tokens[first + 1]


def delivery_number(operation: Op) -> int:
    """Return the consumer sequence of a message."""
    tokens = operation[3].split(b".")
    return int(tokens[6 if len(tokens) == 9 else 8])
