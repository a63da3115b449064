"""
Event ids: UUIDs of version 7, so that ids made later sort later.

48 bits of milliseconds, then a counter of 12 bits that starts anew each
millisecond, then 62 random bits. A counter that runs over borrows from the next
millisecond, which keeps the ids of one process strictly increasing.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

VARIANT = 2 << 62
COUNTER_MAX = 0xFFF


class EventIds:
    """A source of ids that increase."""

    def __init__(self, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._milliseconds = 0
        self._counter = 0
        self._prefix = ""
        self.seed()

    def seed(self) -> None:
        """Take new randomness, as a forked child must."""
        # Asking the operating system each time would double the price of an id, and an
        # id has to be unique, not unguessable.
        self._random_bits = random.Random(os.urandom(32)).getrandbits

    def __call__(self) -> str:
        """Return the next id."""
        now = self._clock_ns() // 1_000_000
        if now > self._milliseconds:
            self._begin(now)
        elif self._counter < COUNTER_MAX:
            self._counter += 1
        else:
            self._begin(self._milliseconds + 1)
        bits = VARIANT | self._random_bits(62)
        return f"{self._prefix}{self._counter:03x}-{bits >> 48:04x}-{bits & 0xFFFFFFFFFFFF:012x}"

    def _begin(self, milliseconds: int) -> None:
        self._milliseconds, self._counter = milliseconds, 0
        self._prefix = f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}-7"


new_event_id = EventIds()
"""The ids of this process."""

os.register_at_fork(after_in_child=new_event_id.seed)
