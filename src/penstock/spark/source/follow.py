"""
How a streaming query reads on and on: what the driver asks, and what the tasks do.

What a driver can ask depends on its Spark: see `limited` and `unlimited`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from penstock.errors import PenstockError
from penstock.spark.connection import Connection
from penstock.spark.envelopes.opener import Opener
from penstock.spark.options import ConnectionOptions, SourceOptions
from penstock.spark.patience import Patience, persistently
from penstock.spark.source.admission import Patient, split, take
from penstock.spark.source.census import Census
from penstock.spark.source.counting import new_census
from penstock.spark.source.loss import check_head, check_same_stream, report_gone
from penstock.spark.source.offsets import Mark, read_offset, write_offset
from penstock.spark.source.position import Position, Range, between
from penstock.spark.source.sizes import take_bytes
from penstock.spark.source.stream import (
    StreamState,
    first_message,
    start_at,
)
from penstock.spark.source.streams import (
    Finder,
    check_left_out,
    check_named,
    check_subjects,
    check_widened,
    find_streams,
    none_match,
)
from penstock.spark.source.tasks import Piece, ReadTask, new_tasks, read_task

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

log = logging.getLogger(__name__)

DRIVER_NAME = "penstock-spark-driver"


class Bound(NamedTuple):
    """The limit of one micro-batch, beside those of the options."""

    messages_max: int | None = None


class UnreadMessages(NamedTuple):
    """The unread messages of one stream."""

    state: StreamState
    census: Census


class SourceFollower(DataSourceStreamReader):
    """Answers the driver where the streams are, and reads ranges of them in the tasks."""

    def __init__(
        self,
        connection: ConnectionOptions,
        source: SourceOptions,
        opener: Opener | None = None,
        *,
        cores: int = 1,
    ) -> None:
        self._connection = connection
        self.source = source
        self._opener = opener
        self.cores = cores
        self.finder = Finder(source)
        self._patient = Patient(source)
        self._opened: Connection | None = None
        self.targets: dict[str, int] | None = None
        """Where a query ends that reads what is there now."""
        self.planned: dict[str, int] | None = None
        """Up to where the newest micro-batch reads."""
        self._nothing_up_to: dict[str, int] = {}
        """Up to where there was nothing to read when it was looked for."""
        self._compared: dict[str, Mark] = {}
        """The marks that were read on the subjects of this query, or on more."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a query without a checkpoint."""
        return write_offset(self.ask(self._begin))

    def _begin(self, connection: Connection) -> dict[str, Mark]:
        marks = {}
        states = find_streams(connection, self.source)
        if not states:
            log.warning("%s", none_match(self.source))
        check_subjects(connection, self.source, states)
        for name, state in states.items():
            position = self.source.starting_position.of(name, Position("earliest"))
            begin = start_at(connection, state, position) - 1
            marks[name] = Mark(state.created, begin, subjects=self.source.subjects)
        return marks

    def plan(
        self, connection: Connection, start: dict[str, Any], bound: Bound | None
    ) -> dict[str, Any]:
        """Return up to where the next micro-batch reads; without a bound, all there is."""
        states = self.finder.find(connection)
        begun = read_offset(start)
        marks = self.without_gone(connection, begun, states)
        for name in states.keys() - marks.keys():
            marks[name] = Mark(states[name].created, states[name].earliest - 1)
        ends = {
            name: replace(begun[name], partitions=(), is_gone=True)
            for name in begun.keys() - marks.keys()
        }
        backlogs = []
        for name, mark in marks.items():
            if name in begun:
                self._compare_subjects(connection, states[name], mark)
            waiting = self._look(connection, states[name], mark)
            if waiting.size:
                census = new_census(connection, states[name], self.source, waiting)
                backlogs.append(UnreadMessages(states[name], census))
            elif name in begun:
                ends[name] = self._pass_over(states[name], mark)
        if backlogs and not self._is_due(backlogs, bound):
            return start
        ends |= self._end(connection, backlogs, marks, bound)
        # What is new and has nothing to read is found again when it has.
        self.planned = {name: mark.sequence for name, mark in ends.items()}
        return write_offset(ends)

    def _compare_subjects(self, connection: Connection, state: StreamState, mark: Mark) -> None:
        # Of what was asked for a mark, nothing can come to be older than it.
        if self._compared.get(state.name) != mark:
            check_widened(connection, state, mark, self.source.subjects)
            self._compared[state.name] = mark

    def without_gone(
        self, connection: Connection, marks: Mapping[str, Mark], states: Mapping[str, StreamState]
    ) -> dict[str, Mark]:
        """Return the marks of streams that are there; the same, or something was lost."""
        check_left_out(connection, self.source, marks)
        check_named(self.source, marks.keys() | states.keys())
        for name in marks.keys() - states.keys():
            if not marks[name].is_gone:
                report_gone(self.source, name)
        left = {n: replace(mark, is_gone=False) for n, mark in marks.items() if n in states}
        for name, mark in left.items():
            check_same_stream(states[name], mark.created)
        return left

    def _look(self, connection: Connection, state: StreamState, mark: Mark) -> Range:
        """Return what waits in a stream; it begins with a message that is to be read."""
        last = state.last_sequence
        if self.targets is not None:
            last = self.targets.get(state.name, 0)
        first = max(mark.sequence, self._nothing_up_to.get(state.name, 0)) + 1
        first = check_head(state, self.source, first)
        if first <= last and (self.source.subjects or state.holes):
            found = first_message(connection, state, self.source.subjects, first)
            first = last + 1 if found is None else found
        if first > last:
            self._nothing_up_to[state.name] = max(mark.sequence, last)
        return Range(first, last)

    def _pass_over(self, state: StreamState, mark: Mark) -> Mark:
        """Return where a stream with nothing to read is left: mostly where it was."""
        # In the older half of the stream the head may pass it, which after a restart would look
        # like a loss.
        end = self._nothing_up_to[state.name]
        middle = (state.earliest - 1 + end) // 2
        if state.earliest > 1 and mark.sequence < middle:
            return Mark(mark.created, end, subjects=self.source.subjects)
        return mark

    def _is_due(self, backlogs: list[UnreadMessages], bound: Bound | None) -> bool:
        if self.targets is not None or bound is None:
            # Nothing more is waited for.
            return True
        return self._patient.is_due([each.census for each in backlogs])

    def _end(
        self,
        connection: Connection,
        backlogs: list[UnreadMessages],
        marks: Mapping[str, Mark],
        bound: Bound | None,
    ) -> dict[str, Mark]:
        """Return up to where streams with something to read are read, and in which ranges."""
        taken = [each.census for each in backlogs]
        if bound is not None:
            taken = take(taken, bound.messages_max)
            taken = self._take_bytes(connection, [each.state for each in backlogs], taken)
        ranges = split(taken, self.source, self.cores)
        return {
            state.name: replace(
                marks[state.name],
                sequence=found[-1].last,
                partitions=tuple(each.first for each in found),
                subjects=self.source.subjects,
                is_gone=False,
            )
            for (state, _), found in zip(backlogs, ranges, strict=True)
        }

    def _take_bytes(
        self, connection: Connection, states: list[StreamState], taken: list[Census]
    ) -> list[Census]:
        bytes_max = self.source.max_bytes_per_trigger
        if bytes_max is None:
            return taken
        weights = [
            each.messages * max(1, state.bytes // max(1, state.messages))
            for state, each in zip(states, taken, strict=True)
        ]
        return [
            take_bytes(
                connection, state, self.source.subjects, each, bytes_max * weight // sum(weights)
            )
            for state, each, weight in zip(states, taken, weights, strict=True)
        ]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges that a micro-batch was split into when it was planned."""
        begun, finished = read_offset(start), read_offset(end)
        # Those with nothing new are as they were.
        moved = {
            name: mark
            for name, mark in finished.items()
            if mark != begun.get(name) and not mark.is_gone
        }
        states, marks = self.ask(lambda connection: self._find(connection, moved))
        pieces = [
            piece for name, mark in marks.items() for piece in self._pieces(states[name], mark)
        ]
        # Spark wants a task, also where the checkpoint only moved on.
        return new_tasks(pieces, self.source) or [ReadTask([])]

    def _find(
        self, connection: Connection, marks: Mapping[str, Mark]
    ) -> tuple[dict[str, StreamState], dict[str, Mark]]:
        states = self.finder.find(connection)
        return states, self.without_gone(connection, marks, states)

    def _pieces(self, state: StreamState, mark: Mark) -> list[Piece]:
        if not mark.partitions:
            return []
        begin = mark.partitions[0]
        first = check_head(state, self.source, begin)
        return [
            Piece(
                state.name,
                mark.created,
                Range(max(first, each.first), each.last),
                begin,
                mark.subjects,
            )
            for each in between(mark.partitions, mark.sequence)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one task."""
        return read_task(self._connection, self.source, self._opener, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint is the only place that knows how far a query is."""

    def stop(self) -> None:
        """Hang up."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Ask over the connection there is, or a new one; the server may be starting again."""

        def attempt() -> T:
            try:
                return question(self.opened_connection())
            except PenstockError:
                self.stop()
                raise

        return persistently(Patience(self._connection.retry_timeout_seconds), attempt)

    def opened_connection(self) -> Connection:
        """Return a connection that stays open from question to question."""
        if self._opened is None:
            self._opened = Connection(self._connection, DRIVER_NAME).__enter__()
        return self._opened
