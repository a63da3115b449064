"""A database, as a relay needs it. The methods block, and are called on one thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Row(NamedTuple):
    """One event that waits to be published."""

    id: int
    event_id: str
    topic: str
    aggregate_id: str
    body: bytes
    attempts: int


class Postponement(NamedTuple):
    """An event that could not be published, the time of its next attempt, and why."""

    id: int
    retry_ns: int
    error: str


class OutboxStore(Protocol):
    """The outbox as its one relay sees it."""

    def open(self) -> bool:
        """Connect and become the only relay; False, and not connected, if there is another."""

    def close(self) -> None:
        """Disconnect, and let another process be the relay."""

    def take(self, rows_max: int, *, now_ns: int) -> list[Row]:
        """Return the due events, in order, without those that must wait for an earlier one."""

    def mark(self, ids: Iterable[int], *, now_ns: int) -> None:
        """Mark events as published. Idempotent."""

    def postpone(self, postponements: Sequence[Postponement]) -> None:
        """Record events to be tried again, and why."""

    def purge(self, *, before_ns: int) -> int:
        """Delete events published before `before_ns`; return how many."""
