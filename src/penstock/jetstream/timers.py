"""Deadlines without a clock: the caller asks for the next one, and passes the time."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable

from penstock.errors import cause

log = logging.getLogger("penstock")

Action = Callable[[int], None]
"""Called with the current time, in nanoseconds."""


class Timer:
    """One deadline, until it has passed or is cancelled."""

    __slots__ = ("action", "deadline_ns")

    def __init__(self, deadline_ns: int, action: Action) -> None:
        self.deadline_ns = deadline_ns
        self.action: Action | None = action

    @property
    def is_armed(self) -> bool:
        """Whether its deadline is still to come."""
        return self.action is not None

    def cancel(self) -> None:
        """Cancel the deadline."""
        self.action = None

    def __lt__(self, other: Timer) -> bool:
        return self.deadline_ns < other.deadline_ns


class Timers:
    """All deadlines of an engine, in one heap."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []

    def at(self, deadline_ns: int, action: Action) -> Timer:
        """Call `action` once the deadline has come."""
        timer = Timer(deadline_ns, action)
        heapq.heappush(self._heap, timer)
        return timer

    def next_deadline_ns(self) -> int | None:
        """Return the next deadline, or None if there is none."""
        while self._heap and not self._heap[0].is_armed:
            heapq.heappop(self._heap)
        return self._heap[0].deadline_ns if self._heap else None

    def run(self, now_ns: int, is_over: Callable[[], bool] = lambda: False) -> None:
        """
        Run the due timers. Timers they set for now or earlier wait for the next call.

        So do those that are left when the time for this call is over.
        """
        due: deque[Timer] = deque()
        while self._heap and self._heap[0].deadline_ns <= now_ns:
            due.append(heapq.heappop(self._heap))
        while due:
            timer = due.popleft()
            action, timer.action = timer.action, None
            if action is not None:
                try:
                    action(now_ns)
                except Exception as error:
                    # They belong to different accounts: the others still run.
                    log.error("What was due at %d failed: %s", timer.deadline_ns, cause(error))
                if is_over():
                    break
        for timer in due:
            heapq.heappush(self._heap, timer)
