"""Handling an event once, although it may be delivered again."""

from __future__ import annotations

from datetime import timedelta
from time import time_ns
from typing import Any

from penstock.bus.outbox.outbox import Statement
from penstock.bus.outbox.tables import FORGET, SEE, Dialect


class Inbox:
    """
    The events that a service has handled.

    `accept` is part of the handler's transaction: if that is rolled back, the event
    was never seen; while it is open, another that accepts the same event waits for it.
    """

    def __init__(self, dialect: Dialect, *, service: str) -> None:
        self._dialect = dialect
        self._service = service

    def accept(self, connection: Any, event_id: str) -> bool:
        """Record an event; False if it was handled before and must be skipped."""
        rows: int = connection.execute(*self.statement(event_id)).rowcount
        return rows == 1

    def statement(self, event_id: str) -> Statement:
        """Return the statement of `accept`; it changes one row if the event is new."""
        return self._dialect.sql(SEE), (self._service, event_id, time_ns())

    def forget(self, connection: Any, *, older_than: timedelta) -> int:
        """Forget events handled so long ago that they will not come again; return how many."""
        before_ns = time_ns() - round(older_than.total_seconds() * 1e9)
        rows: int = connection.execute(
            self._dialect.sql(FORGET), (self._service, before_ns)
        ).rowcount
        return rows
