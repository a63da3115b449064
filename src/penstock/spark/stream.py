"""What the source asks a stream about: its state, a position in it, what is left of a range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import ClientError, JetStreamError
from penstock.spark.connection import Connection
from penstock.spark.position import Position, Range

STREAM_NOT_FOUND = 10059
NO_MESSAGE_FOUND = 10037
INACTIVE_THRESHOLD_NS = 5_000_000_000
"""How long a consumer outlives a task that was killed."""


@dataclass(frozen=True, kw_only=True)
class StreamState:
    """The part of a stream's info that a reader needs."""

    name: str
    created: str
    first_sequence: int
    last_sequence: int
    messages: int
    bytes: int
    retention: str

    @property
    def earliest(self) -> int:
        """The first sequence that can be read; the next one to come if there is none."""
        return self.first_sequence if self.messages else self.last_sequence + 1


def read_state(connection: Connection, stream: str) -> StreamState:
    """Ask for a stream's state."""
    try:
        info = connection.call(f"STREAM.INFO.{stream}")
    except JetStreamError as error:
        if error.err_code == STREAM_NOT_FOUND:
            raise ClientError(
                f"there is no stream `{stream}`; hint: was it deleted, or is the name misspelt?"
            ) from None
        raise
    state = info["state"]
    return StreamState(
        name=stream,
        created=info["created"],
        first_sequence=state["first_seq"],
        last_sequence=state["last_seq"],
        messages=state["messages"],
        bytes=state["bytes"],
        retention=info["config"].get("retention", "limits"),
    )


def first_at(connection: Connection, state: StreamState, position: Position) -> int:
    """Return the first sequence at or behind a position."""
    if position.kind == "earliest":
        return state.earliest
    if position.kind == "latest":
        return state.last_sequence + 1
    if position.kind == "sequence":
        return max(1, position.sequence)
    return _first_since(connection, state, position)


def last_at(connection: Connection, state: StreamState, position: Position) -> int:
    """Return the last sequence at or before a position."""
    if position.kind == "latest":
        return state.last_sequence
    if position.kind == "earliest":
        return state.earliest - 1
    if position.kind == "sequence":
        return min(position.sequence, state.last_sequence)
    return _first_since(connection, state, position) - 1


def _first_since(connection: Connection, state: StreamState, position: Position) -> int:
    """Have a consumer say where a time begins: every server knows that, a direct get not."""
    assert position.time is not None
    if not state.messages:
        return state.last_sequence + 1
    config = {"deliver_policy": "by_start_time", "opt_start_time": position.time}
    info = create_consumer(connection, state, config)
    delete_consumer(connection, state.name, info["name"])
    return int(info["delivered"]["stream_seq"]) + 1


def create_consumer(
    connection: Connection, state: StreamState, config: dict[str, Any]
) -> dict[str, Any]:
    """Create a consumer that leaves nothing behind: in memory, without acks, soon forgotten."""
    if state.retention == "workqueue":
        raise ClientError(
            f"`{state.name}` is a work queue, whose messages only its workers may take; "
            "hint: read a stream that sources or mirrors it"
        )
    settings = {
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": INACTIVE_THRESHOLD_NS,
        **config,
    }
    request = {"stream_name": state.name, "config": settings}
    return connection.call(f"CONSUMER.CREATE.{state.name}", request)


def delete_consumer(connection: Connection, stream: str, name: str) -> None:
    """Delete a consumer; one that is gone already is no error."""
    try:
        connection.call(f"CONSUMER.DELETE.{stream}.{name}")
    except JetStreamError as error:
        if error.code != 404:
            raise


def has_messages(
    connection: Connection, stream: str, subjects: tuple[str, ...], wanted: Range
) -> bool:
    """Look into the store itself whether a range still holds messages on these subjects."""
    for subject in subjects or (">",):
        request = {"seq": wanted.first, "next_by_subj": subject}
        try:
            answer = connection.call(f"STREAM.MSG.GET.{stream}", request)
        except JetStreamError as error:
            if error.err_code == NO_MESSAGE_FOUND:
                continue
            raise
        if answer["message"]["seq"] <= wanted.last:
            return True
    return False
