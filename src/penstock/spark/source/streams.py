"""The streams that a query reads: those that are named, or those that a pattern finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf

from penstock.errors import ClientError, JetStreamError
from penstock.protocol import errorcodes
from penstock.protocol.subjects import cover, matches, overlap
from penstock.spark.connection import Connection
from penstock.spark.options import SourceOptions
from penstock.spark.source.offsets import Mark
from penstock.spark.source.stream import (
    StreamState,
    first_message,
    no_stream,
    state_of,
)

FIND_EVERY_S = 1.0
"""How soon a new stream is found by its pattern."""
FEW, STREAMS_PER_S = 20, 2000
"""With more than `FEW` streams, ask at most this many a second: Spark asks again and again."""


def find_streams(connection: Connection, source: SourceOptions) -> dict[str, StreamState]:
    """Return the state of each stream to read; raise if one that is named is not there."""
    found = read_states(connection, source.streams or find_names(connection, source))
    for name in source.streams:
        if name not in found:
            raise no_stream(name)
    return found


def find_names(connection: Connection, source: SourceOptions) -> list[str]:
    """Return the names of all streams that the pattern matches."""
    names: list[str] = []
    while True:
        page = connection.call("STREAM.NAMES", {"offset": len(names)})
        found = page.get("streams") or []
        names += found
        if not found or len(names) >= int(page.get("total", 0)):
            return sorted(filter(source.selects, names))


def none_match(source: SourceOptions) -> str:
    """Return what there is to say of a pattern that no stream matches."""
    return (
        f"there is no stream whose name matches `streamPattern` = `{source.stream_pattern}`; hint: "
        "it is a regular expression of the whole name"
    )


def read_states(connection: Connection, names: Sequence[str]) -> dict[str, StreamState]:
    """Return the states of streams, without those that are not there."""
    answers = connection.call_all([(f"STREAM.INFO.{name}", None) for name in names])
    states = {}
    for name, answer in zip(names, answers, strict=True):
        if not isinstance(answer, JetStreamError):
            states[name] = state_of(name, answer)
        elif answer.err_code != errorcodes.STREAM_NOT_FOUND.err_code:
            raise answer
    return states


class Finder:
    """Finds the streams of a query that runs, without asking for them all the time."""

    def __init__(self, source: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._names: Sequence[str] = source.streams
        self._states: dict[str, StreamState] = {}
        self._looked_s = self._asked_s = -inf

    def find(self, connection: Connection) -> dict[str, StreamState]:
        """Return the state of each stream that is there."""
        now_s = self._clock()
        if self._source.stream_pattern and now_s - self._looked_s >= FIND_EVERY_S:
            self._names = find_names(connection, self._source)
            self._looked_s = now_s
        count = len(self._names)
        if now_s - self._asked_s >= (count / STREAMS_PER_S if count > FEW else 0.0):
            self._states = read_states(connection, self._names)
            self._asked_s = now_s
        return self._states


def check_named(source: SourceOptions, found: Collection[str]) -> None:
    """Raise if a stream is missing of a query that has begun, and loss is failure."""
    for name in source.streams:
        if name not in found and source.fail_on_data_loss:
            raise no_stream(name)


def check_subjects(
    connection: Connection, source: SourceOptions, states: Mapping[str, StreamState]
) -> None:
    """Raise for a subject that no stream takes or holds: nothing would ever be read of it."""
    for subject in source.subjects if states else ():
        if not any(_has_use_for(connection, state, subject) for state in states.values()):
            taken = ", ".join(f"`{each}`" for state in states.values() for each in state.takes)
            names = ", ".join(f"`{name}`" for name in states)
            raise ClientError(
                f"nothing of {names} can be on `{subject}`, which `subjects` names; hint: is it "
                f"misspelt? {taken} is what there is"
            )


def _has_use_for(connection: Connection, state: StreamState, subject: str) -> bool:
    if not state.takes or any(overlap(subject.encode(), each.encode()) for each in state.takes):
        return True
    # It may have taken others before.
    return first_message(connection, state, (subject,), state.earliest) is not None


def check_widened(
    connection: Connection, state: StreamState, mark: Mark, subjects: tuple[str, ...]
) -> None:
    """Raise if older messages would be left out: of subjects that were not read up to a mark."""
    read = [each.encode() for each in mark.subjects]
    added = [each for each in subjects or (">",) if read and not cover(read, each.encode())]
    oldest = first_message(connection, state, tuple(added), state.earliest) if added else None
    if oldest is None or oldest > mark.sequence:
        return
    # Other words may ask for the same: the subjects that the stream holds decide.
    for subject in _held_subjects(connection, state, added):
        if any(matches(each, subject.encode()) for each in read):
            continue
        oldest = first_message(connection, state, (subject,), state.earliest)
        if oldest is not None and oldest <= mark.sequence:
            names = ", ".join(f"`{each}`" for each in added)
            raise ClientError(
                f"`subjects` has {names} now, and the checkpoint was read without: of stream "
                f"`{state.name}` up to sequence {mark.sequence}, so that older messages would be "
                f"left out, as {oldest} on `{subject}`; hint: read what is added by a query of its "
                "own, with a checkpoint and a target of its own, or all with a new checkpoint and "
                "a new target"
            )


def _held_subjects(
    connection: Connection, state: StreamState, patterns: Sequence[str]
) -> Iterator[str]:
    """Yield the subjects of a stream's messages that match one of some patterns."""
    for pattern in patterns:
        found = 0
        while True:
            request = {"subjects_filter": pattern, "offset": found}
            page = connection.call(f"STREAM.INFO.{state.name}", request)
            subjects = page["state"].get("subjects") or {}
            yield from subjects
            found += len(subjects)
            if not subjects or found >= int(page.get("total", 0)):
                break


def check_left_out(
    connection: Connection, source: SourceOptions, marks: Mapping[str, Mark]
) -> None:
    """Raise if a query does not read a stream of its checkpoint that is still there."""
    names = [n for n, mark in marks.items() if not mark.is_gone and not source.selects(n)]
    for name, state in read_states(connection, names).items():
        if state.created == marks[name].created:
            reads = source.stream or source.stream_pattern
            raise ClientError(
                f"the checkpoint is of stream `{name}`, the query reads `{reads}`; "
                "hint: a query that reads another stream needs a checkpoint of its own"
            )
