"""
Group commit: all changes since the last commit become durable together.

Streams and consumers change in memory immediately, and report it with `engine.touch`. The server
then begins a commit, which hands everything to the operating system, runs its slow part in a
thread, and finishes on the loop. Answers that promise durability leave when the commit that covers
them is finished; changes that arrive meanwhile collect for the next one.

The items of a commit belong to different streams of different accounts. So an error of one item,
foreseen or not, stays with that item, and the others go on. Nobody's messages wait for long because
somebody else makes a thousand streams: a commit takes a few changes of files along, and leaves the
rest to the next commits, see `Allowance`. Accounts take turns, so a single change of one account
does not queue behind a thousand of another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, zip_longest
from typing import Protocol

from penstock.errors import cause
from penstock.jetstream.store.values import Independent, Work

log = logging.getLogger("penstock")

THREADS_MAX = 16
CREW_MAX = 8
CHANGES_MAX = 16
"""The number of streams and consumers that one commit makes, changes and removes."""
ITEMS_MAX = 256
"""The number of streams that one commit covers, so that none has to wait for all the others."""


class Allowance:
    """The number of file changes that the next commit may still take along."""

    def __init__(self) -> None:
        self._left = self._share = CHANGES_MAX
        self._commits = 0

    def choose(self, owners: Mapping[Durable, str]) -> list[Durable]:
        """Return the items of the next commit; some of those that can wait stay for later ones."""
        if len(owners) == 1:
            self._left = self._share = CHANGES_MAX
            return list(owners)
        self._left = CHANGES_MAX
        accounts = len(set(owners.values()))
        self._share = max(CHANGES_MAX // max(accounts, 1), 1)
        self._commits += 1
        items = in_turns(owners, self._commits) if accounts > 1 else owners
        return list(islice((item for item in items if not self._waits(item)), ITEMS_MAX))

    def _waits(self, item: Durable) -> bool:
        return isinstance(item, Change) and item.can_wait and not self.take(1)

    def take(self, count: int) -> int:
        """Return how many of these changes of one account to make now."""
        taken = min(count, self._left, self._share)
        self._left -= taken
        return taken


def in_turns(owners: Mapping[Durable, str], first: int) -> list[Durable]:
    """
    Return items in the order in which they came, their accounts taking turns.

    Each time, another account goes first: `first` is a number that grows.
    """
    queues: dict[str, list[Durable]] = {}
    for item, account in owners.items():
        queues.setdefault(account, []).append(item)
    accounts = list(queues)
    start = first % len(accounts)
    rounds = zip_longest(*(queues[each] for each in accounts[start:] + accounts[:start]))
    return [item for each in rounds for item in each if item is not None]


class Durable(Protocol):
    """An item with changes that have to survive a power cut: a stream, a consumer."""

    @property
    def is_prompt(self) -> bool:
        """Whether its answers always wait for the disk, because it makes files."""

    def begin_commit(self) -> Work | None:
        """Hand the changes so far to the operating system; return the work that makes them safe."""

    def end_commit(self) -> None:
        """Send the answers that waited for the commit. The work's `finish` was called before."""

    def fail_commit(self, reason: str) -> None:
        """Called instead of `end_commit`: report that it is unknown what is safe."""


class Change:
    """
    A change of files that somebody waits for: a `Durable`, and its own `Work`.

    Changes are made in the order in which they came. Changes with a `last` step are independent of
    each other: they come first, side by side, and share that last step.
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
        """Whether a later commit may take it if this one is full."""
        self._error: Exception | None = None

    def begin_commit(self) -> Work | None:
        """Do nothing yet: all of it is slow."""
        return self

    def run(self) -> None:
        """Make the change."""
        self._act()

    def finish(self, error: Exception | None = None) -> None:
        """Remember the outcome."""
        self._error = error

    def end_commit(self) -> None:
        """Report the outcome."""
        self._done(self._error)

    def fail_commit(self, reason: str) -> None:
        """Do nothing: only the callback can have failed, and it has its error."""


class Together:
    """Pieces of work that run one after the other; each may fail on its own."""

    def __init__(self, works: Sequence[Work | None], crew: SyncThreads) -> None:
        self.works = works
        self._crew = crew
        # If the thread stops halfway, the remaining ones are not durable.
        self._errors: dict[int, Exception] = {
            index: OSError("it was never done") for index, work in enumerate(works) if work
        }

    def run(self) -> None:
        """Do the slow part of each."""
        beside = [index for index, work in enumerate(self.works) if _is_independent(work)]
        self._crew.do([partial(self._run_one, index) for index in beside])
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
        """Do the shared step once: one sync covers the names made side by side."""
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
        """Report its outcome to each; return the errors of those that failed at that."""
        failed: dict[int, Exception] = {}
        for index, work in enumerate(self.works):
            if work is not None:
                try:
                    work.finish(self._errors.get(index))
                except Exception as error:
                    log.error("%s cannot be finished: %s", _name(work), cause(error))
                    failed[index] = error
        return failed


class SyncThreads:
    """
    Threads that wait for the disk side by side, for as long as the server runs.

    They mostly wait for syncs, and the operating system merges syncs that wait together.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(CREW_MAX, thread_name_prefix="penstock-disk")

    def do(self, actions: Sequence[Callable[[], None]]) -> None:
        """Do independent actions; one of them in this thread."""
        others = [self._pool.submit(action) for action in actions[1:]]
        for action in actions[:1]:
            action()
        for other in others:
            other.result()

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()


def release(item: Durable) -> Work | None:
    """Write an item's changes, send its answers before the sync, and return the sync, for later."""
    work, error = _begun(item)
    _end(item, error)
    return work


class Commit:
    """One sync under way. `run` belongs in a thread, everything else on the loop."""

    def __init__(self, items: Iterable[Durable], crew: SyncThreads) -> None:
        begun = [(item, *_begun(item)) for item in items]
        self._items = [(item, error) for item, _, error in begun]
        self._works = Together([work for _, work, _ in begun], crew)

    @property
    def is_slow(self) -> bool:
        """Whether there is anything to wait for; memory streams never have."""
        return any(work is not None for work in self._works.works)

    def run(self) -> None:
        """Wait for the disk. An error is kept for its stream."""
        self._works.run()

    def finish(self) -> None:
        """Report the outcome to every item."""
        failed = self._works.finish()
        for index, (item, error) in enumerate(self._items):
            _end(item, error or failed.get(index))


def _is_independent(work: Work | None) -> bool:
    return isinstance(work, Independent) or (isinstance(work, Change) and work.last is not None)


def side_by_side(actions: Sequence[Callable[[], None]]) -> None:
    """
    Do independent actions, several at a time.

    For use inside a crew thread, which cannot wait for the crew: all its threads may be waiting.
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
        log.error("%s cannot be written: %s", _name(item), cause(error))
        return None, error


def _end(item: Durable, error: Exception | None) -> None:
    """Let an item send its answers; if that fails, report it to those who still wait."""
    if error is None:
        try:
            item.end_commit()
            return
        except Exception as caught:
            log.error("%s cannot be finished: %s", _name(item), cause(caught))
            error = caught
    try:
        item.fail_commit(str(error) or type(error).__name__)
    except Exception as caught:
        log.error("%s cannot say that it failed: %s", _name(item), cause(caught))


def _name(item: object) -> str:
    return type(item).__name__
