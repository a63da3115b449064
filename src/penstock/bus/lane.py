"""
One lane: a queue of messages, and the keys of it whose first message failed.

A key that failed is *parked*: later messages of it wait behind the one that failed,
and those of other keys go on. So whatever is done to a lane keeps the order of a key.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection

from penstock.bus.engine import Delivery, Source


class Parked:
    """A key whose first message failed."""

    __slots__ = ("blocked", "error", "failures", "head", "timer", "waiting")

    def __init__(self, head: Delivery) -> None:
        self.head = head
        self.failures = 0
        """Since it was parked: of the handler, and of making a dead letter."""
        self.error = ""
        self.waiting: deque[Delivery] = deque()
        """Later messages of the key, in order."""
        self.timer: asyncio.TimerHandle | None = None
        self.blocked = False


class Lane:
    """One queue. It is ready, or a worker is at it, or there is nothing to do."""

    __slots__ = ("is_abandoned", "is_taken", "parked", "queue")

    def __init__(self) -> None:
        self.queue: deque[Delivery] = deque()
        self.parked: dict[str, Parked] = {}
        self.is_taken = False
        """Whether it is among the ready ones or has a worker."""
        self.is_abandoned = False
        """Whether its worker ended in the middle of it: nothing more of it is begun."""

    def is_behind(self, delivery: Delivery) -> bool:
        """Put a message of a parked key behind the one that failed; tell whether it is."""
        parked = self.parked.get(delivery.key)
        if parked is None or parked.head is delivery:
            return False
        parked.waiting.append(delivery)
        return True

    def reopen(self, delivery: Delivery) -> None:
        """Let the messages that waited behind this one go before any that came later."""
        parked = self.parked.pop(delivery.key, None)
        if parked is not None:
            self.queue.extendleft(reversed(parked.waiting))

    def empty(self, kept: Collection[Delivery] = ()) -> None:
        """Forget all that does not run, but what is kept."""
        queued = [one for one in self.queue if one in kept]
        self.queue.clear()  # not replaced: a worker may be at it
        self.queue.extend(queued)
        for parked in self.parked.values():
            parked.waiting.clear()
            if parked.timer is not None:
                parked.timer.cancel()

    def drop(self, sources: Collection[Source], kept: Collection[Delivery]) -> None:
        """Forget what came from these and is not kept; other topics of a key go on."""
        for parked in list(self.parked.values()):
            parked.waiting = deque(one for one in parked.waiting if one.source not in sources)
            if parked.head.source in sources and parked.head not in kept:
                if parked.timer is not None:
                    parked.timer.cancel()
                self.reopen(parked.head)
        queued = [one for one in self.queue if one.source not in sources]
        self.queue.clear()  # not replaced: a worker may be at it
        self.queue.extend(queued)
