"""
Connections that outlive the task that made them.

A Python worker of Spark runs many tasks, one after the other, and most ask the same
servers. So a connection is kept when a task is done with it, for the next one: first it
is asked whether it is still there, and what is left of the last task is dropped. One that
nobody wants for a while is closed. A task that failed leaves none behind.

A process that is forked from this one begins with none: two that read from one socket
would each get half of what it says.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from penstock.errors import PenstockError
from penstock.spark.connection import Connection
from penstock.spark.options import ConnectionOptions

IDLE_S = 5.0
"""For how long a connection is kept that nobody uses."""


class Pool:
    """Connections that nobody uses at the moment."""

    def __init__(self, idle_s: float = IDLE_S, clock: Callable[[], float] = monotonic) -> None:
        self._idle_s = idle_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free: list[tuple[float, Connection]] = []
        """Each with the time it was given back, the oldest first."""
        self._closer: threading.Timer | None = None

    def take(self, options: ConnectionOptions, name: str) -> Connection:
        """Return a connection that is up, a new one if there is none."""
        while (connection := self._pop(options, name)) is not None:
            try:
                connection.renew()
                return connection
            except PenstockError:
                connection.close()
        return Connection(options, name).__enter__()

    def give_back(self, connection: Connection) -> None:
        """Keep a connection, for which nothing may be under way."""
        if connection.is_open:
            with self._lock:
                self._free.append((self._clock(), connection))
                self._come_back()

    def close_idle(self) -> None:
        """Close what nobody has used for long enough, and come back for the rest."""
        with self._lock:
            self._closer = None
            since_s = self._clock() - self._idle_s
            idle = [connection for given_s, connection in self._free if given_s <= since_s]
            self._free = [each for each in self._free if each[0] > since_s]
            self._come_back()
        for connection in idle:
            connection.close()

    def _pop(self, options: ConnectionOptions, name: str) -> Connection | None:
        with self._lock:
            for index in reversed(range(len(self._free))):
                connection = self._free[index][1]
                if (connection.options, connection.name) == (options, name):
                    return self._free.pop(index)[1]
        return None

    def _come_back(self) -> None:
        if self._free and self._closer is None:
            due_s = self._free[0][0] + self._idle_s
            self._closer = threading.Timer(max(0.0, due_s - self._clock()), self.close_idle)
            self._closer.daemon = True
            self._closer.start()


class WorkerPool:
    """The connection pool of this process."""

    pool = Pool()


@contextmanager
def lend(options: ConnectionOptions, name: str) -> Iterator[Connection]:
    """Lend a connection of this process; keep it, if all goes well."""
    connection = WorkerPool.pool.take(options, name)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise
    WorkerPool.pool.give_back(connection)


def _forget() -> None:
    WorkerPool.pool = Pool()


os.register_at_fork(after_in_child=_forget)
