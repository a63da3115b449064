"""
Results of asynchronous publishes, as a stream to iterate over.

A place in the stream is taken when a message is handed over, and given up when
its result is read. So a stream never drops a result and never grows beyond its
bound: a publisher whose results nobody reads waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from penstock.bus.events.envelope import Envelope


class PublishResult:
    """The result of one asynchronous publish."""

    __slots__ = ("envelope", "error", "payload", "timestamp", "topic")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        envelope: Envelope[Any] | None,
        error: Exception | None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.envelope = envelope
        self.error = error
        self.timestamp = datetime.now(UTC)

    @property
    def success(self) -> bool:
        """Whether the message is stored."""
        return self.error is None

    @property
    def event_id(self) -> str:
        """The event's id; empty for raw messages."""
        return self.envelope.event_id if self.envelope is not None else ""

    @property
    def tenant_id(self) -> int | str | None:
        """The tenant of the event."""
        return self.envelope.tenant_id if self.envelope is not None else None

    def __repr__(self) -> str:
        outcome = "stored" if self.error is None else f"failed: {self.error}"
        return f"PublishResult({self.topic!r}, {self.event_id!r}, {outcome})"


class ResultStream:
    """Results to iterate over, until it is closed: of one tenant, or of all."""

    def __init__(self, *, results_max: int, closed: Callable[[ResultStream], None]) -> None:
        self._results_max = results_max
        self._closed = closed
        self._results: deque[PublishResult] = deque()
        self._expected = 0
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._results)

    @property
    def full(self) -> bool:
        """Whether a publisher has to wait until a result is read."""
        return self._expected >= self._results_max

    async def room(self) -> None:
        """Return when a place is free, or the stream is closed."""
        while self.full and not self._is_closed:
            self._room.clear()
            await self._room.wait()

    def reserve(self) -> None:
        """Take a place for a result that will come."""
        self._expected += 1

    def release(self) -> None:
        """Give up a place: its result is read, or will not come."""
        self._expected -= 1
        self._room.set()

    def put(self, result: PublishResult) -> None:
        """Add a result, for which there is a place."""
        if not self._is_closed:
            self._results.append(result)
            self._arrived.set()

    def close(self) -> None:
        """Accept no more results; iterating ends when those that came are read."""
        self._is_closed = True
        self._arrived.set()
        self._room.set()
        self._closed(self)

    def __aiter__(self) -> ResultStream:
        return self

    async def __anext__(self) -> PublishResult:
        while not self._results:
            if self._is_closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        self.release()
        return self._results.popleft()

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
