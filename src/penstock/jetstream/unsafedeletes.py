"""
The messages that clients deleted and a power cut would bring back.

A delete can still be refused, if the disk fails. Until it is durable, no consumer passes by its
message, or it would never deliver it.
"""

from __future__ import annotations


class UnsafeDeletes:
    """Sequences of deleted messages, by the position that has to be durable for them to be gone."""

    def __init__(self) -> None:
        self._fresh: set[int] = set()
        """Deleted since the last commit began."""
        self._begun: list[tuple[int, set[int]]] = []

    def add(self, sequence: int) -> None:
        """Note a message that was deleted just now."""
        self._fresh.add(sequence)

    def begin_commit(self, position: int) -> None:
        """Note that all so far are in what was written up to a position."""
        if self._fresh:
            self._begun.append((position, self._fresh))
            self._fresh = set()

    def end_commit(self, durable_position: int) -> None:
        """Forget what is gone for good."""
        while self._begun and self._begun[0][0] <= durable_position:
            self._begun.pop(0)

    def clear(self) -> None:
        """Forget all: the store is back at what is durable."""
        self._fresh.clear()
        self._begun.clear()

    def __contains__(self, sequence: int) -> bool:
        return any(sequence in each for each in self._sets())

    def first(self, sequence: int) -> int | None:
        """Return the first one from a sequence on, if there is one."""
        found = [each for some in self._sets() for each in some if each >= sequence]
        return min(found, default=None)

    def _sets(self) -> list[set[int]]:
        return [self._fresh, *(each for _, each in self._begun)]
