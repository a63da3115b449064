"""
Which messages are stored already, by the `Nats-Msg-Id` of their publisher.

Ids are remembered for the stream's duplicate window and no longer: a client that retries a publish
within it gets the sequence of the first try.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import islice

from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Known


class DuplicateWindow:
    """The ids of the duplicate window, and the sequences they were stored under."""

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self._sequences: dict[bytes, int] = {}
        self._arrivals: deque[Known] = deque()

    def __len__(self) -> int:
        return len(self._sequences)

    def find(self, message_id: bytes, now_ns: int) -> int | None:
        """Return the sequence of a message id, if it is still remembered."""
        self.forget_old(now_ns)
        return self._sequences.get(message_id)

    def remember(self, message_id: bytes, sequence: int, time_ns: int) -> None:
        """Note a message that was stored."""
        self._sequences[message_id] = sequence
        self._arrivals.append((sequence, time_ns, message_id))

    def forget_old(self, now_ns: int) -> None:
        """Forget the ids that have left the window."""
        oldest_ns = now_ns - self.window_ns
        while self._arrivals and self._arrivals[0][1] <= oldest_ns:
            _, _, message_id = self._arrivals.popleft()
            self._sequences.pop(message_id, None)

    def forget_after(self, sequence: int) -> None:
        """Forget the ids of messages after a sequence: they were never stored."""
        while self._arrivals and self._arrivals[-1][0] > sequence:
            _, _, message_id = self._arrivals.pop()
            self._sequences.pop(message_id, None)

    def between(self, first_sequence: int, last_sequence: int) -> list[Known]:
        """Return the ids of the messages from one sequence to another."""
        start = bisect_left(self._arrivals, first_sequence, key=_sequence)
        stop = bisect_right(self._arrivals, last_sequence, key=_sequence)
        return list(islice(self._arrivals, start, stop))

    def recover(self, store: Store, now_ns: int) -> None:
        """Remember stored ids again after a restart; their messages may be gone by now."""
        for sequence, time_ns, message_id in store.ids_since(now_ns - self.window_ns):
            self.remember(message_id, sequence, time_ns)


def _sequence(known: Known) -> int:
    return known[0]
