"""
Messages that wait until the last message of a pattern is found: what they expect it to be.

The search gives others their turn. Meanwhile everything else that the same publisher sends to the
stream waits too, so that the order stays; other publishers notice nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import StoreError
from penstock.hot.wire import Op

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.jetstream.intake.target import PublishTarget

Take = Callable[[list[Op], "Session | None", bool], None]
Steps = Generator[None, None, bool]
ROUNDS_MAX = 8
"""How often to look for last messages again because others have published meanwhile."""
LOOKED_AT_AT_ONCE = 8192
"""The number of messages that may be looked at in such a round before others have their turn."""


class WaitingMessages:
    """The waiting messages of one stream, by publisher; None is the server itself."""

    def __init__(self, stream: PublishTarget, take: Take) -> None:
        """
        `take` stores the messages once the search for the first of them is over.

        It is also told whether everything was found, which is not so if others publish too fast.
        """
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
        return self._go_on(self._steps(list(patterns)), publisher, []) is not None

    def _steps(self, patterns: list[bytes]) -> Steps:
        """Return whether all of them are known at one moment, giving others their turn."""
        store = self._stream.store
        reached = store.last_sequence
        for _ in range(ROUNDS_MAX):
            before, looked_at = (store.last_sequence, store.removals), 0
            for pattern in patterns:
                looked_at += store.last_sequence - reached
                if looked_at > LOOKED_AT_AT_ONCE:
                    looked_at = 0
                    yield
                yield from store.finding_last(pattern)
            if before == (store.last_sequence, store.removals):
                return True
            reached = before[0]
        return False

    def _go_on(self, steps: Steps, publisher: Session | None, batch: list[Op]) -> bool | None:
        """Return whether everything is found; None if that takes more than a turn."""
        try:
            while True:
                next(steps)
                if publisher is None or publisher.is_turn_over:
                    self._wait(steps, publisher, batch)
                    return None
        except StopIteration as end:
            is_found: bool = end.value
            return is_found
        except StoreError:
            # The check finds the same, and says so.
            return True

    def _wait(self, steps: Steps, publisher: Session | None, batch: list[Op]) -> None:
        for each in [each for each in self.batches if each is not None and each.closing]:
            del self.batches[each]
        self.batches[publisher] = batch
        again = partial(self._continue, steps, publisher)
        if publisher is not None:
            publisher.do_later(again)
            return
        context = self._stream.context
        context.timers.at(context.clock_ns(), lambda now_ns: again())

    def _continue(self, steps: Steps, publisher: Session | None) -> None:
        batch, stream = self.batches.pop(publisher), self._stream
        if stream.is_closed:
            stream.context.account.answer_no_responders(batch, publisher)
        elif (is_found := self._go_on(steps, publisher, batch)) is not None:
            self._take(batch, publisher, is_found)
