"""The counts of messages that were made lately, as long as they hold."""

from __future__ import annotations

from penstock.jetstream.store.values import Filters

COUNTS_MAX = 64
WORTH_KEEPING = 8192
"""Fewer messages than this are counted again just as fast."""


class Counted:
    """How many messages matched some filters from a sequence on."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, Filters], tuple[int, int, int]] = {}
        """The number, the sequence up to which it holds, and the removals before it was made."""

    def find(
        self, first_sequence: int, last_sequence: int, filters: Filters, removals: int
    ) -> tuple[int, int] | None:
        """Return a number, and the sequence up to which it holds; None if it is not known."""
        if last_sequence - first_sequence < WORTH_KEEPING:
            return None
        found = self._found.get((first_sequence, filters))
        return found[:2] if found is not None and found[2] == removals else None

    def remember(
        self, first_sequence: int, last_sequence: int, filters: Filters, found: tuple[int, int]
    ) -> None:
        """Remember a count of messages between two sequences; the next removal makes it stale."""
        if len(self._found) >= COUNTS_MAX:
            self._found.clear()
        self._found[first_sequence, filters] = found[0], last_sequence, found[1]
