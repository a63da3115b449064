"""
Follow streams as Spark asks before 4.2.

It asks where the streams end, and not from where on, nor how much a micro-batch may hold;
and where all that is there now is to be read, it asks once. So a micro-batch holds all that
waits. Where the last one ended is known from the last answer, and after a restart from the
range without messages that Spark asks for at first. After a crash within a micro-batch, Spark
says nothing before it asks for the next one, nor does `initialOffset` tell: Spark asks for it
to repeat the first micro-batch, which may have read any number of messages. Then the end is
answered without ranges, and `partitions`, which knows both ends, checks and splits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from penstock.errors import ConfigError
from penstock.spark.connection import Connection
from penstock.spark.envelopes.opener import Opener
from penstock.spark.options import ConnectionOptions, SourceOptions, option_name
from penstock.spark.source.admission import split
from penstock.spark.source.counting import new_census
from penstock.spark.source.follow import SourceFollower
from penstock.spark.source.loss import check_head
from penstock.spark.source.offsets import Mark, read_offset, write_offset
from penstock.spark.source.position import Range
from penstock.spark.source.streams import check_widened

LIMITS = ("max_messages_per_trigger", "max_bytes_per_trigger", "min_messages_per_trigger")


class UnlimitedReader(SourceFollower):
    """Takes all there is for a micro-batch."""

    def __init__(
        self,
        connection: ConnectionOptions,
        source: SourceOptions,
        opener: Opener | None = None,
        *,
        cores: int = 1,
    ) -> None:
        for name in LIMITS:
            if getattr(source, name) is not None:
                raise ConfigError(
                    f"`{option_name(name)}` needs PySpark 4.2 or later; hint: leave it out, and a "
                    "micro-batch holds all that waits, in tasks of `maxMessagesPerPartition`"
                )
        super().__init__(connection, source, opener, cores=cores)
        self._seen: dict[str, Any] | None = None
        """Where the newest micro-batch ends that is known."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return up to where the next micro-batch reads."""
        self._seen = self.ask(self._latest)
        return self._seen

    def _latest(self, connection: Connection) -> dict[str, Any]:
        if self._seen is not None:
            return self.plan(connection, self._seen, None)
        states = self.finder.find(connection)
        return write_offset(
            {
                name: Mark(state.created, state.last_sequence, subjects=self.source.subjects)
                for name, state in states.items()
            }
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of a micro-batch."""
        # An end that was answered without knowing the start says nothing of streams that are gone.
        before, after = read_offset(start), read_offset(end)
        gone = {n: replace(before[n], is_gone=True) for n in before.keys() - after.keys()}
        self._seen = write_offset(gone | after)
        return super().partitions(start, self.ask(lambda opened: self._split(opened, start, end)))

    def _split(
        self, connection: Connection, start: dict[str, Any], end: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the end with the ranges of those streams of which it was not known from where."""
        begun, marks = read_offset(start), read_offset(end)
        states = self.finder.find(connection)
        self.without_gone(connection, begun, states)
        for name, state in states.items():
            mark, before = marks.get(name), begun.get(name)
            if mark is None or mark.partitions or mark == before:
                continue
            if before:
                check_widened(connection, state, before, mark.subjects)
            first = before.sequence + 1 if before else state.earliest
            first = check_head(state, self.source, first)
            if mark.sequence < first:
                continue
            census = new_census(connection, state, self.source, Range(first, mark.sequence))
            (ranges,) = split([census], self.source, self.cores)
            marks[name] = replace(mark, partitions=tuple(each.first for each in ranges))
        return write_offset(marks)
