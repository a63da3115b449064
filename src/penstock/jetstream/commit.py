"""
Group commit: what was changed since the last time becomes durable together.

Streams and consumers change at once in memory, and say so with `engine.touch`.
The server then begins a commit, which hands everything to the operating system,
runs its slow part in a thread, and finishes it on the loop. Answers that
promise durability leave when the commit that covers them is finished; whatever
arrives meanwhile collects for the next one.

The items of a commit belong to different streams of different accounts. So whatever goes
wrong with one of them, foreseen or not, is kept for that one, and the others go on.
And nobody's messages wait for long because somebody else makes a thousand streams: a commit
takes a few changes of files along, and leaves the others to the next ones, see `Allowance`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from penstock.errors import cause
from penstock.jetstream.store.values import Work

log = logging.getLogger("penstock")

THREADS_MAX = 16
CHANGES_MAX = 16
"""How many streams and consumers one commit makes, changes and removes."""


class Allowance:
    """How many changes of files the commit that begins may still take along."""

    def __init__(self) -> None:
        self._left = CHANGES_MAX

    def renew(self) -> None:
        """Begin another commit."""
        self._left = CHANGES_MAX

    def take(self, count: int) -> int:
        """Return how many of so many changes are to be made now."""
        taken = min(count, self._left)
        self._left -= taken
        return taken


class Durable(Protocol):
    """Something with changes that are to survive a power cut: a stream, a consumer."""

    @property
    def is_prompt(self) -> bool:
        """Whether its answers wait for the disk even where others do not: it makes files."""

    def begin_commit(self) -> Work | None:
        """Hand the changes made so far to the operating system; return what makes them safe."""

    def end_commit(self) -> None:
        """Let go of the answers that waited for it. The work's `finish` was called before."""

    def fail_commit(self, reason: str) -> None:
        """In place of `end_commit`: tell those who waited that nobody knows what is safe."""


class Independent:
    """Work that touches nothing that other work of its commit does, and may run beside it."""


class Change:
    """
    A change of files that somebody waits for: a `Durable`, and its own `Work`.

    Changes are made in the order in which they came. Those with something to do at `last` have
    nothing to do with each other: they come first, side by side, and share what is done last.
    """

    is_prompt = True

    def __init__(
        self,
        act: Callable[[], None],
        done: Callable[[Exception | None], None],
        *,
        last: Callable[[], None] | None = None,
        can_wait: bool = True,
    ) -> None:
        self._act = act
        self._done = done
        self.last = last
        self.can_wait = can_wait
        """Whether it is left to a later commit if this one has enough to do."""
        self._error: Exception | None = None

    def begin_commit(self) -> Work:
        """Do nothing yet: all of it is slow."""
        return self

    def run(self) -> None:
        """Make the change."""
        self._act()

    def finish(self, error: Exception | None = None) -> None:
        """Remember how it went."""
        self._error = error

    def end_commit(self) -> None:
        """Tell who waits."""
        self._done(self._error)

    def fail_commit(self, reason: str) -> None:
        """Say why it failed: only who waits can have failed at it, and was told."""


class Together:
    """Pieces of work that are done one after the other, each of which may fail for itself."""

    def __init__(self, works: Sequence[Work | None]) -> None:
        self.works = works
        # A thread that ends halfway has not made the others durable.
        self._errors: dict[int, Exception] = {
            index: OSError("it was never done") for index, work in enumerate(works) if work
        }

    def run(self) -> None:
        """Do the slow part of all of them."""
        beside = [index for index, work in enumerate(self.works) if _is_independent(work)]
        side_by_side([partial(self._run_one, index) for index in beside])
        for index, work in enumerate(self.works):
            if work is not None and not _is_independent(work):
                self._run_one(index)
        self._run_shared()

    def _run_one(self, index: int) -> None:
        work = self.works[index]
        assert work is not None
        try:
            work.run()
            del self._errors[index]
        except Exception as error:
            self._errors[index] = error

    def _run_shared(self) -> None:
        """Do once what several of them need: one sync covers the names they made side by side."""
        shared: dict[Callable[[], None], list[int]] = {}
        for index, work in enumerate(self.works):
            if isinstance(work, Change) and work.last is not None and index not in self._errors:
                shared.setdefault(work.last, []).append(index)
        for last, indexes in shared.items():
            try:
                last()
            except Exception as error:
                self._errors |= dict.fromkeys(indexes, error)

    def finish(self) -> dict[int, Exception]:
        """Tell each how it went; return those who could not even take that."""
        failed: dict[int, Exception] = {}
        for index, work in enumerate(self.works):
            if work is not None:
                try:
                    work.finish(self._errors.get(index))
                except Exception as error:
                    log.error("%s can not be finished: %s", _name(work), cause(error))
                    failed[index] = error
        return failed


def release(items: Iterable[Durable]) -> list[Work]:
    """Write changes, let the answers go before the sync, and return that: it is made later."""
    works: list[Work] = []
    for item in items:
        work, error = _begun(item)
        if work is not None:
            works.append(work)
        _end(item, error)
    return works


class Commit:
    """One sync under way. `run` belongs in a thread, everything else on the loop."""

    def __init__(self, items: Iterable[Durable]) -> None:
        begun = [(item, *_begun(item)) for item in items]
        self._items = [(item, error) for item, _, error in begun]
        self._works = Together([work for _, work, _ in begun])

    @property
    def is_slow(self) -> bool:
        """Whether there is anything to wait for; memory streams have nothing."""
        return any(work is not None for work in self._works.works)

    def run(self) -> None:
        """Wait for the disk. An error is kept for the stream it belongs to."""
        self._works.run()

    def finish(self) -> None:
        """Tell everybody how it went."""
        failed = self._works.finish()
        for index, (item, error) in enumerate(self._items):
            _end(item, error or failed.get(index))


def _is_independent(work: Work | None) -> bool:
    return isinstance(work, Independent) or (isinstance(work, Change) and work.last is not None)


def side_by_side(actions: Sequence[Callable[[], None]]) -> None:
    """
    Do things that have nothing to do with each other, several at a time.

    Most of their time is waiting for syncs, and the operating system makes one of those
    that wait together.
    """
    if len(actions) < 2:
        for action in actions:
            action()
        return
    with ThreadPoolExecutor(min(len(actions), THREADS_MAX)) as pool:
        for done in [pool.submit(action) for action in actions]:
            done.result()


def _begun(item: Durable) -> tuple[Work | None, Exception | None]:
    try:
        return item.begin_commit(), None
    except Exception as error:
        log.error("%s can not be written: %s", _name(item), cause(error))
        return None, error


def _end(item: Durable, error: Exception | None) -> None:
    """Let an item answer; one that fails at that says so to those who still wait."""
    if error is None:
        try:
            item.end_commit()
            return
        except Exception as caught:
            log.error("%s can not be finished: %s", _name(item), cause(caught))
            error = caught
    try:
        item.fail_commit(str(error) or type(error).__name__)
    except Exception as caught:
        log.error("%s can not say that it failed: %s", _name(item), cause(caught))


def _name(item: object) -> str:
    return type(item).__name__
