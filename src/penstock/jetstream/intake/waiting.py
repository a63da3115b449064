"""
Messages that wait until the last message of a pattern is found: what they expect it to be.

The search gives others their turn. Meanwhile everything else that the same publisher sends to the
stream waits too, so that the order stays; other publishers notice nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import StoreError
from penstock.hot.wire import Op

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.jetstream.intake.target import Target

Take = Callable[[list[Op], "Session | None"], None]


class Waiting:
    """The waiting messages of one stream, by publisher; None is the server itself."""

    def __init__(self, stream: Target, take: Take) -> None:
        """`take` stores the messages once the search for the first of them is over."""
        self._stream = stream
        self._take = take
        self.batches: dict[Session | None, list[Op]] = {}

    def takes(self, batch: list[Op], publisher: Session | None) -> bool:
        """Take messages if others of the same publisher wait already."""
        waiting = self.batches.get(publisher)
        if waiting is not None:
            waiting += batch
        return waiting is not None

    def find(self, patterns: Iterable[bytes], publisher: Session | None) -> bool:
        """Find the last messages of some patterns; False if that takes more than a turn."""
        return self._go_on(self._steps(patterns), publisher, [])

    def _steps(self, patterns: Iterable[bytes]) -> Iterator[None]:
        for pattern in patterns:
            yield from self._stream.store.finding_last(pattern)

    def _go_on(self, steps: Iterator[None], publisher: Session | None, batch: list[Op]) -> bool:
        try:
            for _ in steps:
                if publisher is None or publisher.is_turn_over:
                    self._wait(steps, publisher, batch)
                    return False
        except StoreError:
            # The check finds the same, and says so.
            return True
        return True

    def _wait(self, steps: Iterator[None], publisher: Session | None, batch: list[Op]) -> None:
        for each in [each for each in self.batches if each is not None and each.closing]:
            del self.batches[each]
        self.batches[publisher] = batch
        again = partial(self._continue, steps, publisher)
        if publisher is not None:
            publisher.do_later(again)
            return
        context = self._stream.context
        context.timers.at(context.clock_ns(), lambda now_ns: again())

    def _continue(self, steps: Iterator[None], publisher: Session | None) -> None:
        batch, stream = self.batches.pop(publisher), self._stream
        if stream.is_closed:
            stream.context.account.answer_no_responders(batch, publisher)
        elif self._go_on(steps, publisher, batch):
            self._take(batch, publisher)
