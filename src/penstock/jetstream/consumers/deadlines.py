"""The times when a consumer has to act by itself: one timer for its earliest deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.jetstream.consumers.common import Common
    from penstock.jetstream.timers import Timer

RETRY_NS = 1_000_000_000
"""How long after a failure to try again."""


class Deadlines:
    """The timer of one consumer."""

    def __init__(self, common: Common, act: Callable[[int], None]) -> None:
        """`act` does the work that is due at a time."""
        self._common = common
        self._act = act
        self._timer: Timer | None = None
        self._is_closed = False

    def close(self) -> None:
        """Stop acting."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def soon(self) -> None:
        """Act after others had their turn."""
        self.watch(self._common.context.clock_ns())

    def watch(self, deadline_ns: int = 0) -> None:
        """Act at this deadline, or at an earlier one of a part."""
        common = self._common
        deadlines = (
            deadline_ns,
            common.ledger.deadline_ns,
            common.outlet.deadline_ns,
            self.inactive_ns(),
            common.backlog.due_ns,
            common.paused_until_ns,
        )
        next_ns = min([each for each in deadlines if each], default=0)
        if not next_ns:
            return
        if self._timer is not None and self._timer.is_armed:
            if self._timer.deadline_ns <= next_ns:
                return
            self._timer.cancel()
        self._timer = common.context.timers.at(next_ns, self._on_time)

    def _on_time(self, now_ns: int) -> None:
        if self._is_closed:
            return
        try:
            self._act(now_ns)
        except Exception:
            self._timer = self._common.context.timers.at(now_ns + RETRY_NS, self._on_time)
            raise

    def inactive_ns(self) -> int:
        """Return when the consumer will have been idle long enough to be removed; 0 is never."""
        threshold_ns, outlet = self._common.config.inactive_threshold, self._common.outlet
        is_idle = threshold_ns > 0 and not outlet.is_bound
        return outlet.last_active_ns + threshold_ns if is_idle else 0

    def is_inactive(self, now_ns: int) -> bool:
        """Tell whether nobody seems to use the consumer any more."""
        if not 0 < self.inactive_ns() <= now_ns:
            return False
        pending = self._common.ledger.pending
        acks_due_ns = max((due_ns for _, due_ns in pending.values()), default=0)
        return self._common.outlet.is_abandoned(now_ns, acks_due_ns)
