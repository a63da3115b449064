"""Adding events to the outbox, in the user's own transaction."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from time import time_ns
from typing import Any, TypeAlias

from penstock.bus.events.codec import Codec
from penstock.bus.events.envelope import Envelope
from penstock.bus.events.names import check_moment, check_topic
from penstock.bus.outbox.tables import Dialect

Statement: TypeAlias = tuple[str, tuple[Any, ...]]


class Outbox:
    """Takes the events of a transaction. It opens, commits and rolls back nothing."""

    def __init__(self, dialect: Dialect, *, codec: Codec | None = None) -> None:
        self._dialect = dialect
        self._codec = codec or Codec()

    def create_tables(self, connection: Any) -> None:
        """Create the tables of outbox and inbox if they do not exist."""
        for statement in self._dialect.create:
            connection.execute(statement)

    def add(
        self,
        connection: Any,
        topic: str,
        envelope: Envelope[Any],
        *,
        due: datetime | None = None,
    ) -> None:
        """
        Publish an event once the transaction is committed, not before `due`.

        `connection` is one of `sqlite3` or psycopg. Adding an event again, by its
        id, changes nothing.
        """
        connection.execute(*self.statement(topic, envelope, due=due))

    def add_all(self, connection: Any, topic: str, envelopes: Iterable[Envelope[Any]]) -> None:
        """Add several events, in order."""
        for envelope in envelopes:
            self.add(connection, topic, envelope)

    def statement(
        self, topic: str, envelope: Envelope[Any], *, due: datetime | None = None
    ) -> Statement:
        """Return the statement of `add`, for connections that are awaited or wrapped."""
        check_moment("due", due)
        due_ns = time_ns() if due is None else round(due.timestamp() * 1e9)
        return self._dialect.sql(self._dialect.insert), (
            envelope.event_id,
            check_topic(topic),
            envelope.aggregate_id,
            self._codec.encode(envelope),
            due_ns,
        )
