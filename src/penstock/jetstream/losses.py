"""The damaged files and messages of a stream, and log lines for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jetstream.store.store import Store

log = logging.getLogger("penstock")

LISTED_MAX = 1000
"""The number of damaged messages that StreamInfo names."""
LOGGED_MAX = 100
"""The number of damaged messages with a log line each; after that, every hundredth gets one."""


class Losses:
    """The damage found in one stream so far."""

    def __init__(self, store: Store, name: str) -> None:
        """Listen to a store; `name` is the stream's name in the log."""
        self._store = store
        self._name = name
        self.sequences: list[int] = []
        """Damaged messages."""
        self.faults: list[str] = []
        """Damaged and missing files, in words."""
        store.watch_damage(self._add, lambda fault: self.tell([fault]))

    def tell(self, faults: Iterable[str]) -> None:
        """Report damaged and missing files of the stream."""
        for fault in faults:
            self.faults.append(fault)
            log.error("Stream '%s': %s", self._name, fault)

    def _add(self, sequence: int) -> None:
        """Report a damaged message; of many, the first few and then the sum."""
        if len(self.sequences) < LISTED_MAX:
            self.sequences.append(sequence)
        lost = self._store.lost
        if lost <= LOGGED_MAX or lost % LOGGED_MAX == 0:
            log.error(
                "Stream '%s': message %d is damaged on disk and lost (%d so far); "
                "hint: `penstock store check` tells what else is",
                self._name,
                sequence,
                lost,
            )
