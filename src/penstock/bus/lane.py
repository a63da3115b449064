"""
One lane: a queue of messages, and its keys whose first message failed.

A key that failed is *parked*: later messages of it wait behind the one that failed,
and those of other keys go on. So every operation on a lane keeps the order of a key.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection

from penstock.bus.engine import Delivery, IsTaken


class Parked:
    """A key whose first message failed."""

    __slots__ = ("blocked", "error", "failures", "head", "timer", "waiting")

    def __init__(self, head: Delivery) -> None:
        self.head = head
        self.failures = 0
        """Failures since it was parked, of the handler and of making a dead letter."""
        self.error = ""
        self.waiting: deque[Delivery] = deque()
        """Later messages of the key, in order."""
        self.timer: asyncio.TimerHandle | None = None
        self.blocked = False


class Lane:
    """One queue. It is ready, or a worker has it, or it is empty."""

    __slots__ = ("is_abandoned", "is_taken", "parked", "queue")

    def __init__(self) -> None:
        self.queue: deque[Delivery] = deque()
        self.parked: dict[str, Parked] = {}
        self.is_taken = False
        """Whether it is among the ready ones or has a worker."""
        self.is_abandoned = False
        """Whether its worker ended in the middle of it: nothing more in it is begun."""

    def is_behind(self, delivery: Delivery) -> bool:
        """Queue a message behind the failed one if its key is parked; return whether it is."""
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
        """Forget all messages that neither run nor are in `kept`."""
        queued = [one for one in self.queue if one in kept]
        self.queue.clear()  # not replaced: a worker may be at it
        self.queue.extend(queued)
        for parked in self.parked.values():
            # Its head may be running; then these come before what is in the queue.
            parked.waiting = deque(one for one in parked.waiting if one in kept)
            if parked.timer is not None:
                parked.timer.cancel()

    def drop(self, is_taken: IsTaken, kept: Collection[Delivery]) -> None:
        """Forget messages that are taken and not in `kept`; other topics of a key go on."""
        for parked in list(self.parked.values()):
            parked.waiting = deque(one for one in parked.waiting if not is_taken(one))
            if is_taken(parked.head) and parked.head not in kept:
                if parked.timer is not None:
                    parked.timer.cancel()
                self.reopen(parked.head)
        queued = [one for one in self.queue if not is_taken(one)]
        self.queue.clear()  # not replaced: a worker may be at it
        self.queue.extend(queued)
