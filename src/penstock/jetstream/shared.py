"""
The shared parts of a server's accounts: the clock, the deadlines, the changes and the threads.

Each account has its own engine, and all engines share one disk. So one commit makes the changes of
all accounts durable, and one heap holds every deadline. The server drives this object:

    shared.begin_commit()               after each tick: make changes durable, see `commit`
    shared.timers.next_deadline_ns()    when the next timer is due
    shared.timers.run(now_ns)           run the due timers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.jetstream.commit import Allowance, Commit, Durable, SyncThreads, release
from penstock.jetstream.files.rubbish import Rubbish
from penstock.jetstream.store.file.disk import Disk
from penstock.jetstream.store.values import Work
from penstock.jetstream.storedclock import StoredClock
from penstock.jetstream.timers import Timers

if TYPE_CHECKING:
    from penstock.config.jetstream import JetStreamConfig

RETRY_NS = 1_000_000_000
"""How long after a failure of the disk to try again."""


class Tenant(Protocol):
    """An account, with its use of the server's limits."""

    @property
    def stream_count(self) -> int:
        """The number of its streams, including those being made."""

    def reserved_bytes(self, storage: str) -> int:
        """Return the bytes that its streams with a `max_bytes` may take together."""

    def used_bytes(self, storage: str) -> int:
        """Return the bytes that its streams take together."""


class Shared:
    """JetStream of one server, without its accounts."""

    def __init__(
        self,
        config: JetStreamConfig,
        disk: Disk,
        *,
        server_name: str,
        clock_ns: Callable[[], int],
        random: Callable[[], float],
    ) -> None:
        self.config = config
        self.server_name = server_name
        self.clock = StoredClock(clock_ns)
        self.clock_ns = self.clock.now_ns
        self.random = random
        self.waits_for_sync = config.sync_interval == "always"
        """Whether answers wait until the change they promise would survive a power cut."""
        self.timers = Timers()
        self.tenants: list[Tenant] = []
        """All accounts that have JetStream."""
        self.dirty: dict[Durable, str] = {}
        """Items with changes that no commit has covered yet, in order, and their accounts."""
        self.crew = SyncThreads()
        self.allowance = Allowance()
        self.rubbish = Rubbish(disk)
        """The files of deleted streams of all accounts."""
        self.appended_bytes = 0
        """The bytes that all commits together gave the streams to write."""

    def touch(self, item: Durable, account: str) -> None:
        """Make the next commit include the changes of an item."""
        self.dirty[item] = account

    def retry(self, item: Durable, account: str) -> None:
        """Commit an item again after a while: the disk may work by then."""
        self.timers.at(self.clock_ns() + RETRY_NS, lambda now_ns: self.touch(item, account))

    def begin_commit(self) -> Commit | None:
        """Begin to make all changes so far durable, if there are any."""
        return Commit(self._take_dirty(), self.crew) if self.dirty else None

    def write_unsynced(self) -> tuple[list[Work], Commit | None]:
        """
        Write all changes so far, answer, and return the work that makes them durable later.

        Also return a commit for items whose answers always wait for the disk: they make files,
        which must exist even after the server is killed.
        """
        works: list[Work] = []
        prompt: list[Durable] = []
        for item in self._take_dirty():
            if item.is_prompt:
                prompt.append(item)
            elif (work := release(item)) is not None:
                works.append(work)
        return works, Commit(prompt, self.crew) if prompt else None

    def _take_dirty(self) -> list[Durable]:
        dirty = self.dirty
        items = self.allowance.choose(dirty)
        if len(items) == len(dirty):
            dirty.clear()
        else:
            for item in items:
                del dirty[item]
        return items
