"""The backlog of a service, and the patterns it no longer has a handler for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic
from typing import TypeAlias

from penstock.bus.engine import Lag
from penstock.bus.engines.nats.durables import Durables
from penstock.bus.engines.nats.source import Source

logger = logging.getLogger("penstock.bus")

UNHANDLED_TOLD_S = 5.0
"""How long after the start handlers may still be registered without a warning."""

IsWanted: TypeAlias = Callable[[str], bool]


async def lag_of(
    durables: Durables,
    streams: Iterable[str],
    is_wanted: IsWanted,
    source_of: Callable[[str, str], Source | None],
) -> Lag:
    """Return the backlog of a service."""
    messages, oldest_ns = 0, 0
    unhandled: dict[str, int] = {}
    for stream in streams:
        infos = await durables.infos(stream)
        for pattern, info in infos.items():
            left = info["num_pending"] + info["num_ack_pending"]
            if not is_wanted(pattern):
                left -= await durables.left_to_others(stream, pattern, infos)
                unhandled[pattern] = unhandled.get(pattern, 0) + max(0, left)
                continue
            messages += left
            if left:
                one_ns = _held_ns(source_of(stream, pattern)) or await durables.oldest_ns(
                    stream, info
                )
                oldest_ns = min(filter(None, (oldest_ns, one_ns)), default=0)
    return Lag(messages, oldest_ns, unhandled)


def _held_ns(source: Source | None) -> int:
    """Return when the oldest was stored that is here of a consumer; 0 if nothing is."""
    held = source.held.values() if source is not None else ()
    return min((delivery.timestamp_ns for delivery in held), default=0)


class Left:
    """Patterns the service had consumers for before this process started."""

    def __init__(self) -> None:
        self.patterns: list[str] = []
        self._told_s = inf

    async def find(self, durables: Durables, streams: Iterable[str]) -> None:
        """Look the patterns up on the server."""
        found: dict[str, None] = {}
        for stream in streams:
            found |= dict.fromkeys(await durables.patterns(stream))
        self.patterns = list(found)
        self._told_s = monotonic() + UNHANDLED_TOLD_S

    def add(self, pattern: str) -> None:
        """Add a pattern whose handler this process had itself."""
        if pattern not in self.patterns:
            self.patterns.append(pattern)

    def unhandled(self, is_wanted: IsWanted) -> tuple[str, ...]:
        """Return the patterns without a handler."""
        return tuple(one for one in self.patterns if not is_wanted(one))

    def tell(self, is_wanted: IsWanted) -> None:
        """Warn of patterns without a handler, once all handlers must be registered."""
        if monotonic() < self._told_s:
            return
        self._told_s = inf
        for pattern in self.unhandled(is_wanted):
            logger.warning(
                "! `%s` has no handler any more, its messages wait; hint: subscribe to it, "
                "or `await bus.forget(%r)`",
                pattern,
                pattern,
            )
