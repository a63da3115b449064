"""
Drives JetStream: runs the timers of all engines, and writes their changes to disk.

One commit is in progress at a time, in a thread of its own. Changes that arrive meanwhile
go into the next one, so a thousand publishers wait for one sync and not for a thousand.
With a sync interval the answers do not wait, and a timer syncs the written data. The same
thread does the stores' housekeeping, in small steps, when there is nothing else to do;
between two commits it removes a few files of deleted streams.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from penstock.config.accounts import GLOBAL, JetStreamLimits
from penstock.config.jetstream import JetStreamConfig
from penstock.core.account import Account
from penstock.core.broker import Broker
from penstock.errors import StoreError, cause, reason
from penstock.jetstream.api.accountpurge import AccountPurge
from penstock.jetstream.api.refusal import RefusingApi
from penstock.jetstream.commit import Commit, Together
from penstock.jetstream.files.storekey import check_unlocked, unlock
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.server import JetStreamAccounts
from penstock.jetstream.shared import Shared
from penstock.jetstream.store.file.disk import Disk, Lock, RealDisk
from penstock.jetstream.store.file.encryption import Keys, encrypted
from penstock.jetstream.store.file.log import FileSettings
from penstock.jetstream.store.values import Work
from penstock.net.reactor import Reactor

if TYPE_CHECKING:
    from penstock.net.remotes import Remotes

log = logging.getLogger("penstock")

HOUSEKEEPING_S = 0.5
HOUSEKEEPING_LATEST_S = 1.0
"""The longest time that a busy server postpones housekeeping."""
UNSYNCED_BYTES_MAX = 16 * 1024 * 1024
"""With a sync interval, unsynced data is held in memory too, so it needs a bound."""
DEADLINE_NS_MAX = 3600 * 1_000_000_000
"""The longest time between two looks at the clock, however far away the next deadline is."""
DUE_S = 0.01
"""How long timers may run before clients have their turn."""
STUCK_S = 30.0
"""A commit that takes longer than this may never end."""
COMMITS_MAX = 8
"""The number of consecutive commits without disk: one's answers may be the next one's publishes."""


def jetstream_accounts(broker: Broker) -> dict[str, JetStreamLimits]:
    """Return the accounts with JetStream. Without configured accounts, that is the global one."""
    others = set(broker.accounts) - {GLOBAL, broker.directory.system.name}
    if not others:
        return {GLOBAL: JetStreamLimits()}
    configs = [account.config for account in broker.accounts.values()]
    return {each.name: each.jetstream for each in configs if each.jetstream is not None}


def _unusable(directory: str, error: OSError) -> str:
    """Return why a directory is unusable, in nats-server's words, and the remedy."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = f"storage directory is not a directory: `{directory}`"
    else:
        text = (error.strerror or str(error)).lower()
        reason = f"could not create storage directory - `{directory}`: {text}"
    return f"{reason}; name another with `jetstream.store_dir`"


class Journal:
    """The engines of one server on its event loop."""

    def __init__(self, broker: Broker, config: JetStreamConfig) -> None:
        self.config = config
        self._broker = broker
        self._bare_disk: Disk = RealDisk()
        self._keys = Keys(config.cipher) if config.key else None
        self._disk = encrypted(self._bare_disk, self._keys) if self._keys else self._bare_disk
        self._remotes = self._open_remotes()
        self._shared = Shared(
            config,
            self._disk,
            server_name=broker.server_name,
            clock_ns=broker.clock_ns,
            random=random.random,
        )
        self._jetstream = JetStreamAccounts(self._shared)
        self.engines = self._jetstream.engines
        """One engine for each account with JetStream."""
        for name, limits in jetstream_accounts(broker).items():
            self._add(broker.accounts[name], limits)
        system = broker.directory.system
        others = broker.accounts.keys() - self.engines.keys()
        self._domain = config.domain or ""
        self._refusals = {
            name: RefusingApi(broker.accounts[name], self._domain, is_system=name == system.name)
            for name in others
        }
        self._purge = AccountPurge(system, self._domain, self.engines)
        self._housekeeping = deque(self.engines.values())
        """The engines, in the order of their turns for housekeeping."""
        self._lock: Lock | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-journal")
        self.commits = 0
        """The number of commits that went to disk."""
        self.commit_s = 0.0
        """Their total time."""
        self._job: asyncio.Future[None] | None = None
        """The current job of the thread."""
        self._began_s: float | None = None
        """When the current job began."""
        self._unsynced: list[Work] = []
        self._synced_bytes = 0
        """The appended bytes when the last sync began."""
        self._kept_house_s = 0.0
        self._deadline_ns: int | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def _open_remotes(self) -> Remotes | None:
        if not self.config.remotes:
            return None
        # Import the client only if a stream can copy from another server.
        from penstock.net.remotes import Remotes

        name = f"penstock {self._broker.server_name}"
        return Remotes(self.config.remotes, name=name, flush=lambda: self._reactor.flush())

    def _add(self, account: Account, limits: JetStreamLimits) -> None:
        remotes = self._remotes.of_account(account.name) if self._remotes is not None else None
        settings = FileSettings(index_bytes_max=self.config.max_index)
        files = StreamFiles(self._disk, self.config.store_dir, account.name, settings)
        self._jetstream.add(account, files, limits=limits, remotes=remotes)

    def follow_accounts(self) -> None:
        """Apply the current JetStream limits of all accounts, and add accounts that are new."""
        for name, limits in jetstream_accounts(self._broker).items():
            if name in self.engines:
                self.engines[name].quota.limits = limits
                continue
            if name in self._refusals:
                self._refusals.pop(name).close()
            self._add(self._broker.accounts[name], limits)
            self._housekeeping.append(self.engines[name])
            self._jetstream.open(name)
        for name in self._broker.accounts.keys() - self.engines.keys() - self._refusals.keys():
            self._refusals[name] = RefusingApi(
                self._broker.accounts[name], self._domain, is_system=False
            )
            self._refusals[name].open()

    def open(self) -> None:
        """Lock the store directory and recover its streams. Blocks."""
        directory = f"{self.config.store_dir}/jetstream"
        try:
            self._disk.make_directory(directory)
            self._lock = self._disk.lock(directory)
        except OSError as error:
            raise StoreError(f"Can't start JetStream: {_unusable(directory, error)}") from error
        log.info("Starting JetStream")
        log.info("  Store Directory: %s", directory)
        log.info("  Sync:            %s", self._describe_sync())
        self._unlock(directory)
        for name in self.engines:
            self._jetstream.open(name)
        for refusal in self._refusals.values():
            refusal.open()
        self._purge.open()
        streams = sum(len(engine.streams) for engine in self.engines.values())
        log.info("  Streams:         %d", streams)

    def _unlock(self, directory: str) -> None:
        """Find the key of an encrypted store before anything in it is read."""
        config = self.config
        if self._keys is None:
            check_unlocked(self._bare_disk, directory)
            return
        assert config.key is not None
        log.info("  Encryption:      %s", config.cipher)
        try:
            notes = unlock(self._bare_disk, directory, self._keys, config.key, config.prev_key)
        except OSError as error:
            raise StoreError(f"`{directory}` cannot be encrypted: {reason(error)}") from error
        for note in notes:
            log.info("  Encryption:      %s", note)

    def _describe_sync(self) -> str:
        sync = self.config.sync_interval
        return "always, before the ack" if sync == "always" else f"every {sync:g} s"

    def attach(self, reactor: Reactor) -> None:
        """Start working on the reactor's loop."""
        self._reactor = reactor
        self._loop = reactor.loop
        reactor.before_flush = self.on_tick
        self._every(HOUSEKEEPING_S, self._keep_house)
        if self.config.sync_interval != "always":
            self._every(self.config.sync_interval, self._sync)
        self.on_tick()

    def on_tick(self) -> None:
        """Start a commit if there are changes and none is in progress; set the timer."""
        shared = self._shared
        if shared.dirty and self._job is None:
            self._commit_all(shared)
        deadline_ns = shared.timers.next_deadline_ns()
        if deadline_ns != self._deadline_ns:
            self._arm(deadline_ns)

    def _commit_all(self, shared: Shared) -> None:
        for _ in range(COMMITS_MAX):
            self._commit(shared)
            if self._job is not None or not shared.dirty:
                return
        # Nothing of this is on its way to disk, so nothing else would wake us.
        self._loop.call_soon(self._reactor.flush)

    def _commit(self, shared: Shared) -> None:
        if not shared.waits_for_sync:
            works, prompt = shared.write_unsynced()
            self._unsynced += works
            if prompt is not None:
                self._run(lambda: self._measure(prompt.run), lambda: self._finish(prompt))
            elif shared.appended_bytes - self._synced_bytes > UNSYNCED_BYTES_MAX:
                self._sync()
            return
        commit = shared.begin_commit()
        assert commit is not None, "something is dirty"
        if commit.is_slow:
            self._run(lambda: self._measure(commit.run), lambda: self._finish(commit))
        else:
            commit.finish()

    def _finish(self, commit: Commit) -> None:
        """Send the answers. Between two commits, remove files of deleted streams."""
        commit.finish()
        if self._shared.rubbish:
            self._keep_house_now()

    def _measure(self, run: Callable[[], None]) -> None:
        start_s = time.perf_counter()
        run()
        self.commit_s += time.perf_counter() - start_s
        self.commits += 1

    def _run(self, run: Callable[[], None], finish: Callable[[], None]) -> None:
        """Call `run` in the thread, then `finish` on the loop."""
        self._job = self._loop.create_future()
        self._began_s = self._loop.time()
        # Not `run_in_executor`: its futures cost the loop two more turns.
        self._executor.submit(self._run_in_thread, run, finish)

    def _run_in_thread(self, run: Callable[[], None], finish: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            run()
        except BaseException as caught:
            error = caught
        self._loop.call_soon_threadsafe(self._done, finish, error)

    def _done(self, finish: Callable[[], None], error: BaseException | None) -> None:
        job, self._job = self._job, None
        assert job is not None
        job.set_result(None)
        self._began_s = None
        if error is not None:
            log.error("The journal's thread failed: %s", cause(error))
        finish()
        if self._loop.time() - self._kept_house_s > HOUSEKEEPING_LATEST_S:
            self._keep_house_now()
        # Start the next commit before the acks of this one are written.
        self._reactor.flush()

    def _arm(self, deadline_ns: int | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline_ns, self._deadline = deadline_ns, None
        if deadline_ns is not None:
            delay_ns = min(max(deadline_ns - self._shared.clock_ns(), 0), DEADLINE_NS_MAX)
            self._deadline = self._loop.call_later(delay_ns / 1e9, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline_ns = self._deadline = None
        time_s = self._loop.time
        end_s = time_s() + DUE_S
        self._shared.timers.run(self._shared.clock_ns(), lambda: time_s() > end_s)
        self._reactor.flush()

    def _every(self, interval_s: float, action: Callable[[], None]) -> None:
        def again() -> None:
            self._timers.remove(handle)
            self._every(interval_s, action)
            action()

        handle = self._loop.call_later(interval_s, again)
        self._timers.append(handle)

    def _sync(self) -> None:
        """Sync everything written since the last sync."""
        if self._job is None and self._unsynced:
            works, self._unsynced = self._unsynced, []
            self._synced_bytes = self._shared.appended_bytes
            self._work(works, then=self._retry_failed, is_commit=True)

    def _retry_failed(self) -> None:
        for engine in self.engines.values():
            engine.retry_failed()

    def _keep_house(self) -> None:
        if self._job is None and not self._shared.dirty:
            self._keep_house_now()

    def _keep_house_now(self) -> None:
        self._kept_house_s = self._loop.time()
        if self._job is not None:
            return
        for _ in range(len(self._housekeeping)):
            self._housekeeping.rotate(-1)
            work = self._housekeeping[-1].maintain()
            if work is not None:
                self._work([work], then=self._keep_house)
                return

    def _work(
        self, works: list[Work], then: Callable[[], None], *, is_commit: bool = False
    ) -> None:
        together = Together(works, self._shared.crew)

        def finish() -> None:
            together.finish()
            then()

        run = together.run
        self._run((lambda: self._measure(run)) if is_commit else run, finish)

    @property
    def stuck_s(self) -> float:
        """How long the current commit has been stuck; 0 if all is well."""
        if self._began_s is None:
            return 0.0
        passed_s = self._loop.time() - self._began_s
        return passed_s if passed_s > STUCK_S else 0.0

    async def leave_remotes(self) -> None:
        """Stop copying from other servers, and clean up there."""
        if self._remotes is None:
            return
        for engine in self.engines.values():
            for stream in engine.streams.values():
                stream.origins.close()
        await self._remotes.close()

    async def settle(self) -> None:
        """Return when everything published so far is on disk."""
        self.on_tick()
        while self._job is not None:
            await asyncio.wait([self._job])
            # The callback that takes the result runs after us.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """
        Take no more messages, make everything durable and release the directory.

        Clients that wait for messages get a status; the reactor has to write it.
        """
        self._cancel_timers()
        for engine in self.engines.values():
            engine.stop_listening()
        await self.settle()
        self._sync()
        await self.settle()
        # Finishing the job may have set another deadline.
        self._cancel_timers()
        self.release()
        self._reactor.before_flush = None

    def _cancel_timers(self) -> None:
        for timer in (*self._timers, self._deadline):
            if timer is not None:
                timer.cancel()
        self._timers.clear()

    def release(self) -> None:
        """Close the stores and release the directory. No job may be in progress."""
        self._executor.shutdown()
        self._jetstream.close()
        if self._lock is not None:
            self._lock.release()
