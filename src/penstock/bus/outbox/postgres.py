"""The outbox in a PostgreSQL database, through psycopg."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from penstock.bus.outbox.store import Postponement, Row
from penstock.bus.outbox.tables import MARK, POSTGRESQL, POSTPONE, PURGE, TAKE
from penstock.errors import BusError, MissingExtra

RELAY_LOCK = 0x70656E73746F636B
"""`penstock` in ASCII: the advisory lock of the one relay of a database."""


class PostgresStore:
    """The relay's side. An advisory lock of its session keeps it the only relay."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: Any = None

    def open(self) -> bool:
        """Connect and become the only relay; False if there is another."""
        try:
            psycopg = import_module("psycopg")
        except ImportError:
            raise MissingExtra(
                "an outbox in PostgreSQL needs a package; hint: pip install 'psycopg[binary]'"
            ) from None
        self._connection = psycopg.connect(self._conninfo, autocommit=True)
        try:
            locked = self._execute("SELECT pg_try_advisory_lock(?)", (RELAY_LOCK,)).fetchone()[0]
            if locked:
                for statement in POSTGRESQL.create:
                    self._execute(statement)
        except BaseException:
            self.close()
            raise
        if not locked:
            self.close()
        return bool(locked)

    def close(self) -> None:
        """Disconnect, and let another process be the relay."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def take(self, rows_max: int, *, now_ns: int) -> list[Row]:
        """Return the due events, in order."""
        rows = self._execute(TAKE, (now_ns, now_ns, rows_max)).fetchall()
        return [Row(*row) for row in rows]

    def mark(self, ids: Iterable[int], *, now_ns: int) -> None:
        """Mark events as published."""
        self._write(MARK, [(now_ns, one) for one in ids])

    def postpone(self, postponements: Sequence[Postponement]) -> None:
        """Record events to be tried again."""
        self._write(POSTPONE, [(one.retry_ns, one.error, one.id) for one in postponements])

    def purge(self, *, before_ns: int) -> int:
        """Delete events published before `before_ns`."""
        rows: int = self._execute(PURGE, (before_ns,)).rowcount
        return rows

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        if self._connection is None:
            raise BusError("the outbox is not open")
        return self._connection.execute(POSTGRESQL.sql(statement), parameters)

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        if self._connection is None:
            raise BusError("the outbox is not open")
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(POSTGRESQL.sql(statement), rows)
