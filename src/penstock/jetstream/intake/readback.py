"""
Go through all messages of a stream again, after a restart or a failure, a piece at a time.

A piece that cannot be read is tried again until it can: what is in there and behind it
would be forgotten otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import cause
from penstock.jetstream.store import lookup
from penstock.jetstream.store.values import Message
from penstock.jetstream.timers import Timer
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.jetstream.intake.target import PublishTarget

log = logging.getLogger("penstock")

RETRY_NS = SECOND_NS


class ReadBack:
    """Reads the messages of one stream, whenever that is asked for."""

    def __init__(
        self, stream: PublishTarget, what: str, take: Callable[[Sequence[Message]], None]
    ) -> None:
        """`what` says in the log what they are read for; `take` is called with each piece."""
        self._stream = stream
        self._what = what
        self._take = take
        self._done: Callable[[], None] = _nothing
        self._timer: Timer | None = None
        self._has_failed = False

    def begin(self, done: Callable[[], None] | None = None) -> None:
        """Read from the first message on, and call `done` after the last."""
        self.cancel()
        self._done = done or _nothing
        self._go_on(0)

    def cancel(self) -> None:
        """Read no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self, sequence: int) -> None:
        if self._stream.is_closed:
            return
        store = self._stream.store
        try:
            messages, following = store.read(
                sequence, count_max=lookup.READ_COUNT, bytes_max=lookup.READ_BYTES
            )
        except Exception as error:
            self._complain(sequence, error)
            self._later(sequence, RETRY_NS)
            return
        self._take(messages)
        if following <= store.last_sequence:
            self._later(following, 0)
            return
        if self._has_failed:
            self._has_failed = False
            log.info("Stream '%s': all %s are read back", self._stream.config.name, self._what)
        self._done()

    def _later(self, sequence: int, delay_ns: int) -> None:
        context = self._stream.context
        deadline_ns = context.clock_ns() + delay_ns
        self._timer = context.timers.at(deadline_ns, lambda now_ns: self._go_on(sequence))

    def _complain(self, sequence: int, error: Exception) -> None:
        """Say it once, however often it is tried."""
        if not self._has_failed:
            self._has_failed = True
            text = "Stream '%s': %s cannot be read back from message %d on, will try again: %s"
            log.error(text, self._stream.config.name, self._what, sequence, cause(error))


def _nothing() -> None:
    """Stand in for what is done at the end, where that is nothing."""
