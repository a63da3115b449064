"""Follow streams as Spark asks since 4.2: so much at a time, and up to where."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import PenstockError
from penstock.spark.patience import is_transient
from penstock.spark.source.follow import Bound, SourceFollower
from penstock.spark.source.offsets import Mark, write_offset
from penstock.spark.source.stream import ReaderLag, StreamState, read_lag


class StreamReader(SourceFollower, SupportsTriggerAvailableNow):
    """Takes no more for a micro-batch than it may hold."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return what one micro-batch may hold, as far as Spark has a word for it."""
        source = self.source
        if source.max_messages_per_trigger is not None:
            return ReadMaxRows(source.max_messages_per_trigger)
        if source.max_bytes_per_trigger is not None:
            return ReadMaxBytes(source.max_bytes_per_trigger)
        if source.min_messages_per_trigger is not None:
            return ReadMinRows(source.min_messages_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return up to where the next micro-batch reads."""
        return self.ask(lambda connection: self.plan(connection, start, self._bound(limit)))

    def _bound(self, limit: ReadLimit) -> Bound | None:
        """Return the stricter bound: Spark passes one, and the options may have another."""
        if isinstance(limit, ReadAllAvailable):
            return None
        bounds = [self.source.max_messages_per_trigger]
        if isinstance(limit, ReadMaxRows):
            bounds.append(limit.max_rows)
        return Bound(min((each for each in bounds if each is not None), default=None))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the ends of the streams, and how far behind them the newest micro-batch is."""
        states = self.ask(self.finder.find)
        ends = write_offset(
            {name: Mark(state.created, state.last_sequence) for name, state in states.items()}
        )
        if self.planned is None:
            return ends
        try:
            lags = [self._lag(state) for state in states.values()]
        except PenstockError as error:
            self.stop()
            if not is_transient(error):
                raise
            # A query does not fail for want of a figure.
            return ends
        return ends | {
            "behindMessages": sum(lag.messages for lag in lags),
            "behindSeconds": max((lag.seconds for lag in lags), default=0.0),
        }

    def _lag(self, state: StreamState) -> ReaderLag:
        planned = (self.planned or {}).get(state.name, 0)
        return read_lag(self.opened_connection(), state, self.source.subjects, planned)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now, and then no more."""
        states = self.ask(self.finder.find)
        self.targets = {name: state.last_sequence for name, state in states.items()}
