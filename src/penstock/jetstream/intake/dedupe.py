"""
Which messages were stored already, by the `Nats-Msg-Id` their publisher gave them.

Ids are remembered for the stream's duplicate window and no longer: a client that
retries a publish within it gets the sequence of the first try.
"""

from __future__ import annotations

from collections import deque

from penstock.jetstream.store import lookup
from penstock.jetstream.store.values import Store
from penstock.protocol import headers


class DuplicateWindow:
    """The ids of the last so many nanoseconds, and the sequences they were stored under."""

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self._sequences: dict[bytes, int] = {}
        self._arrivals: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._sequences)

    def find(self, message_id: bytes, now_ns: int) -> int | None:
        """Return the sequence a message id was stored under, if it is still remembered."""
        self.forget_old(now_ns)
        return self._sequences.get(message_id)

    def remember(self, message_id: bytes, sequence: int, time_ns: int) -> None:
        """Note a message that was stored."""
        self._sequences[message_id] = sequence
        self._arrivals.append((time_ns, message_id))

    def forget_old(self, now_ns: int) -> None:
        """Let go of the ids that have left the window."""
        oldest_ns = now_ns - self.window_ns
        while self._arrivals and self._arrivals[0][0] <= oldest_ns:
            _, message_id = self._arrivals.popleft()
            self._sequences.pop(message_id, None)

    def recover(self, store: Store, now_ns: int) -> None:
        """Remember again what is in the store, after a restart."""
        for messages in lookup.batches(store, store.sequence_at(now_ns - self.window_ns)):
            for stored, time_ns, _, header, _ in messages:
                message_id = headers.get(header, b"Nats-Msg-Id") if header else None
                if message_id:
                    self.remember(message_id, stored, time_ns)
