"""Questions to a stream: its state, a position in it, what is left of a range."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.client.inbox import unique_token
from penstock.errors import ClientError, JetStreamError, PenstockError
from penstock.protocol import errorcodes
from penstock.spark.connection import Connection
from penstock.spark.source.position import Position, Range

log = logging.getLogger(__name__)

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
    allow_direct: bool
    takes: tuple[str, ...] = ()
    """The subjects of all it stores; none where its configuration does not tell."""

    @property
    def earliest(self) -> int:
        """The first sequence that can be read; the next one to come if there is none."""
        return self.first_sequence if self.messages else self.last_sequence + 1

    @property
    def is_work_queue(self) -> bool:
        """Whether a consumer would take messages from others."""
        return self.retention == "workqueue"

    @property
    def holes(self) -> int:
        """How many single messages were deleted."""
        return self.last_sequence + 1 - self.earliest - self.messages


def read_state(connection: Connection, stream: str) -> StreamState:
    """Ask for a stream's state; raise if there is no such stream."""
    state = find_state(connection, stream)
    if state is None:
        raise no_stream(stream)
    return state


def find_state(connection: Connection, stream: str) -> StreamState | None:
    """Ask for a stream's state, if there is such a stream."""
    try:
        return state_of(stream, connection.call(f"STREAM.INFO.{stream}"))
    except JetStreamError as error:
        if error.err_code == errorcodes.STREAM_NOT_FOUND.err_code:
            return None
        raise


def no_stream(stream: str) -> ClientError:
    """Return what to raise of a stream that is not there."""
    return ClientError(
        f"there is no stream `{stream}`; hint: was it deleted, or is the name misspelt?"
    )


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
        retention=info["config"].get("retention", "limits"),
        allow_direct=bool(info["config"].get("allow_direct")),
        takes=_takes(info["config"]),
    )


def _takes(config: dict[str, Any]) -> tuple[str, ...]:
    # What others store, or what is renamed, may be on any subject.
    if any(config.get(name) for name in ("mirror", "sources", "subject_transform")):
        return ()
    return tuple(config.get("subjects") or ())


def first_at(connection: Connection, state: StreamState, position: Position) -> int:
    """Return the first sequence at or behind a position."""
    if position.kind == "earliest":
        return state.earliest
    if position.kind == "latest":
        return state.last_sequence + 1
    if position.kind == "sequence":
        return max(1, position.sequence)
    return _first_after(connection, state, lambda time: time >= _time_of(position))


def start_at(connection: Connection, state: StreamState, position: Position) -> int:
    """Return the same of a position to start from; raise if the stream ends before it."""
    first = first_at(connection, state, position)
    _check_end("startingPosition", state, first, state.last_sequence + 1)
    return first


def _check_end(option: str, state: StreamState, sequence: int, greatest: int) -> None:
    if sequence > greatest:
        raise ClientError(
            f"`{option}` is the sequence {sequence}, but stream `{state.name}` ends at "
            f"{state.last_sequence}; hint: `latest`, or a time in milliseconds, which has 13 digits"
        )


def last_at(connection: Connection, state: StreamState, position: Position) -> int:
    """Return the last sequence at or before a position; raise if the stream ends before it."""
    if position.kind == "latest":
        return state.last_sequence
    if position.kind == "earliest":
        return state.earliest - 1
    if position.kind == "sequence":
        _check_end("endingPosition", state, position.sequence, state.last_sequence)
        return position.sequence
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
    try:
        return connection.call(*creation(state, config))
    except JetStreamError as error:
        raise refused(state, error) from None


def creation(state: StreamState, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the API call that creates such a consumer."""
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
    return operation, {"stream_name": state.name, "config": settings}


def refused(state: StreamState, error: JetStreamError) -> PenstockError:
    """Return what to raise if a consumer cannot be created."""
    if error.err_code != errorcodes.MAXIMUM_CONSUMERS_LIMIT.err_code:
        return error
    return ClientError(
        f"stream `{state.name}` has as many consumers as its `max_consumers` allows, and "
        "every task needs one; hint: raise it, or read with fewer tasks (`minPartitions`)"
    )


def subject_filter(subjects: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of a consumer that gets these subjects only."""
    if len(subjects) == 1:
        return {"filter_subject": subjects[0]}
    return {"filter_subjects": list(subjects)} if subjects else {}


def delete_consumers(connection: Connection, stream: str, names: Sequence[str]) -> None:
    """Delete consumers if that can be done: they go by themselves after a while."""
    try:
        connection.call_all([(f"CONSUMER.DELETE.{stream}.{name}", None) for name in names])
    except PenstockError as error:
        log.info("consumers of `%s` are left to the server: %s", stream, error)


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


class ReaderLag(NamedTuple):
    """How far behind the end of a stream a reader is."""

    messages: int
    """How many were not read, at most: some may be on other subjects, or deleted."""
    seconds: float
    """How long the oldest message that was not read has been waiting."""


def read_lag(
    connection: Connection, state: StreamState, subjects: tuple[str, ...], sequence: int
) -> ReaderLag:
    """Return the lag of a reader that has read up to a sequence."""
    waiting = _next_messages(connection, state.name, subjects, sequence + 1)
    times = [datetime.fromisoformat(message["time"]) for message in waiting]
    now = datetime.now(UTC)
    seconds = max([(now - time).total_seconds() for time in times], default=0.0)
    # Of a work queue's sequences, most are gone.
    behind = min(max(0, state.last_sequence - sequence), state.messages) if times else 0
    return ReaderLag(behind, round(max(0.0, seconds), 3))


def _next_messages(
    connection: Connection, stream: str, subjects: tuple[str, ...], first: int
) -> Iterator[dict[str, Any]]:
    """Yield, for each subject, the first message from a sequence on that is still stored."""
    for subject in subjects or (">",):
        request = {"seq": first, "next_by_subj": subject}
        try:
            yield connection.call(f"STREAM.MSG.GET.{stream}", request)["message"]
        except JetStreamError as error:
            if error.err_code != errorcodes.NO_MESSAGE_FOUND.err_code:
                raise
