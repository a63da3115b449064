"""
The housekeeping of an account: its stores take turns.

One piece of work at a time. Of many streams most want nothing, so only some are asked in one go:
others have their turn in between.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import cause
from penstock.jetstream.store.values import Work

if TYPE_CHECKING:
    from penstock.jetstream.stream import Stream

log = logging.getLogger("penstock")

ASKED_MAX = 256
"""The number of streams to ask in one go."""


class Housekeeping:
    """Keeps track of the next stream, and of those whose housekeeping fails."""

    def __init__(self, account: str) -> None:
        self._account = account
        self._turn = 0
        self._untidy: set[str] = set()
        """Streams whose housekeeping fails."""

    def next(self, streams: Sequence[Stream]) -> Work | None:
        """Return the next piece of work that one of the streams wants done."""
        for _ in range(min(len(streams), ASKED_MAX)):
            self._turn = self._turn % len(streams) + 1
            work = self._asked(streams[self._turn - 1])
            if work is not None:
                return work
        return None

    def _asked(self, stream: Stream) -> Work | None:
        """Ask one stream; skip a failing one, and log that once."""
        try:
            work = stream.store.maintain()
        except Exception as error:
            if stream.name not in self._untidy:
                self._untidy.add(stream.name)
                name = f"{self._account} > {stream.name}"
                log.error("Stream '%s' cannot be kept in order: %s", name, cause(error))
            return None
        self._untidy.discard(stream.name)
        return work
