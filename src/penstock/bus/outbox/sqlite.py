"""The outbox in an SQLite file."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.bus.outbox.store import Postponement, Row
from penstock.bus.outbox.tables import MARK, POSTPONE, PURGE, SQLITE, TAKE
from penstock.errors import BusError

BUSY_TIMEOUT_S = 5.0


class SqliteStore:
    """The relay's side. A lock on a file beside the database keeps it the only relay."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = None
        self._lock = -1

    def open(self) -> bool:
        """Connect and become the only relay; False if there is another."""
        lock = os.open(f"{self._path}.relay", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        self._lock = lock
        try:
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            for statement in SQLITE.create:
                self._connection.execute(statement)
        except BaseException:
            self.close()
            raise
        return True

    def close(self) -> None:
        """Disconnect, and let another process be the relay."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock != -1:
            os.close(self._lock)
            self._lock = -1

    def take(self, rows_max: int, *, now_ns: int) -> list[Row]:
        """Return the due events, in order."""
        return [Row(*row) for row in self._open.execute(TAKE, (now_ns, now_ns, rows_max))]

    def mark(self, ids: Iterable[int], *, now_ns: int) -> None:
        """Mark events as published."""
        self._write(MARK, [(now_ns, one) for one in ids])

    def postpone(self, postponements: Sequence[Postponement]) -> None:
        """Record events to be tried again."""
        self._write(POSTPONE, [(one.retry_ns, one.error, one.id) for one in postponements])

    def purge(self, *, before_ns: int) -> int:
        """Delete events published before `before_ns`."""
        return self._open.execute(PURGE, (before_ns,)).rowcount

    @property
    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise BusError("the outbox is not open")
        return self._connection

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        if not rows:
            return
        connection = self._open
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(statement, rows)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
