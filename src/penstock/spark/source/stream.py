"""What the source asks a stream about: its state, a position in it, what is left of a range."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.client.inbox import unique_token
from penstock.errors import ClientError, JetStreamError, PenstockError
from penstock.spark.connection import Connection
from penstock.spark.source.position import Position, Range

log = logging.getLogger(__name__)

STREAM_NOT_FOUND = 10059
NO_MESSAGE_FOUND = 10037
CONSUMERS_MAX_REACHED = 10026
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
    is_work_queue: bool
    allow_direct: bool

    @property
    def earliest(self) -> int:
        """The first sequence that can be read; the next one to come if there is none."""
        return self.first_sequence if self.messages else self.last_sequence + 1

    @property
    def has_holes(self) -> bool:
        """Whether single messages were deleted."""
        return self.messages < self.last_sequence + 1 - self.earliest


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
    return state_of(stream, info)


def state_of(stream: str, info: dict[str, Any]) -> StreamState:
    """Read a stream's info."""
    state = info["state"]
    return StreamState(
        name=stream,
        created=info["created"],
        first_sequence=state["first_seq"],
        last_sequence=state["last_seq"],
        messages=state["messages"],
        bytes=state["bytes"],
        is_work_queue=info["config"].get("retention") == "workqueue",
        allow_direct=bool(info["config"].get("allow_direct")),
    )


def read_duplicate_window_s(connection: Connection, stream: str) -> float:
    """Return for how long a stream remembers message ids."""
    config = connection.call(f"STREAM.INFO.{stream}")["config"]
    return float(config.get("duplicate_window", 0)) / 1e9


def first_at(connection: Connection, state: StreamState, position: Position) -> int:
    """Return the first sequence at or behind a position."""
    if position.kind == "earliest":
        return state.earliest
    if position.kind == "latest":
        return state.last_sequence + 1
    if position.kind == "sequence":
        return max(1, position.sequence)
    return _first_after(connection, state, lambda time: time >= _time_of(position))


def last_at(connection: Connection, state: StreamState, position: Position) -> int:
    """Return the last sequence at or before a position."""
    if position.kind == "latest":
        return state.last_sequence
    if position.kind == "earliest":
        return state.earliest - 1
    if position.kind == "sequence":
        return min(position.sequence, state.last_sequence)
    return _first_after(connection, state, lambda time: time > _time_of(position)) - 1


def _time_of(position: Position) -> datetime:
    assert position.time is not None
    return position.time


def _first_after(
    connection: Connection, state: StreamState, is_late: Callable[[datetime], bool]
) -> int:
    """
    Find the first message whose time is late enough: halve the stream until it is found.

    The leader is asked, some twenty times. A consumer would know at once, but it lives on any
    replica, and one that has not caught up takes its own end for the end of the stream.
    """
    low, high = state.earliest, state.last_sequence + 1
    while low < high:
        middle = (low + high) // 2
        found = next(_next_messages(connection, state.name, (), middle), None)
        if found is None or is_late(datetime.fromisoformat(found["time"])):
            high = middle
        else:
            low = found["seq"] + 1
    return low


def create_consumer(
    connection: Connection, state: StreamState, config: dict[str, Any]
) -> dict[str, Any]:
    """Create a consumer that leaves nothing behind: in memory, without acks, soon forgotten."""
    name = unique_token()
    settings = {
        "name": name,
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": INACTIVE_THRESHOLD_NS,
        **config,
    }
    # With the subject in it, a user may be allowed to read only some.
    operation = ".".join(
        ["CONSUMER.CREATE", state.name, name, *filter(None, [config.get("filter_subject")])]
    )
    try:
        return connection.call(operation, {"stream_name": state.name, "config": settings})
    except JetStreamError as error:
        if error.err_code == CONSUMERS_MAX_REACHED:
            raise ClientError(
                f"stream `{state.name}` has as many consumers as its `max_consumers` allows, and "
                "every task needs one; hint: raise it, or read with fewer tasks (`minPartitions`)"
            ) from None
        raise


def delete_consumer(connection: Connection, stream: str, name: str) -> None:
    """Delete a consumer if that can be done: it goes by itself after a while."""
    try:
        connection.call(f"CONSUMER.DELETE.{stream}.{name}")
    except PenstockError as error:
        log.info("consumer `%s` is left to the server: %s", name, error)


def has_messages(
    connection: Connection, stream: str, subjects: tuple[str, ...], wanted: Range
) -> bool:
    """Look into the store itself whether a range still holds messages on these subjects."""
    found = _next_messages(connection, stream, subjects, wanted.first)
    return any(message["seq"] <= wanted.last for message in found)


def first_message(
    connection: Connection, state: StreamState, subjects: tuple[str, ...], first: int
) -> int | None:
    """Return the first sequence from one on that holds a message on these subjects."""
    found = _next_messages(connection, state.name, subjects, first)
    return min((message["seq"] for message in found), default=None)


class Lag(NamedTuple):
    """How far behind the end of a stream a reader is."""

    messages: int
    """How many were not read, at most: some may be on other subjects, or deleted."""
    seconds: float
    """How long the oldest message that was not read has been waiting."""


def read_lag(
    connection: Connection, state: StreamState, subjects: tuple[str, ...], sequence: int
) -> Lag:
    """Return the lag of a reader that has read up to a sequence."""
    waiting = _next_messages(connection, state.name, subjects, sequence + 1)
    times = [datetime.fromisoformat(message["time"]) for message in waiting]
    now = datetime.now(UTC)
    seconds = max([(now - time).total_seconds() for time in times], default=0.0)
    # Of a work queue's sequences, most are gone.
    behind = min(max(0, state.last_sequence - sequence), state.messages) if times else 0
    return Lag(behind, round(max(0.0, seconds), 3))


def _next_messages(
    connection: Connection, stream: str, subjects: tuple[str, ...], first: int
) -> Iterator[dict[str, Any]]:
    """Yield, for each subject, the first message from a sequence on that is still stored."""
    for subject in subjects or (">",):
        request = {"seq": first, "next_by_subj": subject}
        try:
            yield connection.call(f"STREAM.MSG.GET.{stream}", request)["message"]
        except JetStreamError as error:
            if error.err_code != NO_MESSAGE_FOUND:
                raise
