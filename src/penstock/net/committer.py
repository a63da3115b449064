"""
Drives JetStream: gives the engines of all accounts time, and their changes to the disk.

One commit is under way at a time, in one thread that does nothing else. What
arrives meanwhile collects for the next, so a thousand publishers wait for one
sync and not for a thousand. With a sync interval the answers do not wait: what
was written is synced by a timer. The same thread does the housekeeping of the
stores, in pieces, when there is nothing else to do; and between two commits it
removes a few files of deleted streams.
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
from penstock.config.server import JetStreamConfig
from penstock.core.account import Account
from penstock.core.broker import Broker
from penstock.errors import StoreError, cause
from penstock.jetstream.api.accountpurge import AccountPurge
from penstock.jetstream.api.refusal import Refusal
from penstock.jetstream.commit import Commit, Together
from penstock.jetstream.engine import Engine
from penstock.jetstream.files.streamfiles import StreamFiles
from penstock.jetstream.store.file.disk import Lock, RealDisk
from penstock.jetstream.store.file.log import FileSettings
from penstock.jetstream.store.values import Work
from penstock.net.reactor import Reactor

if TYPE_CHECKING:
    from penstock.net.remotes import Remotes

log = logging.getLogger("penstock")

HOUSEKEEPING_S = 0.5
HOUSEKEEPING_LATEST_S = 1.0
"""A busy server puts housekeeping off no longer than this."""
UNSYNCED_BYTES_MAX = 16 * 1024 * 1024
"""With a sync interval: what is not synced yet is held in memory too, so it has a bound."""
DEADLINE_NS_MAX = 3600 * 1_000_000_000
"""The clock is looked at so often at least, however far away the next deadline is."""
STUCK_S = 30.0
"""A commit that takes longer than this is one that may never end."""
COMMITS_MAX = 8
"""Commits in a row that need no disk: the answers of one may be the publishes of the next."""


def jetstream_accounts(broker: Broker) -> dict[str, JetStreamLimits]:
    """Return the accounts that have JetStream: without others, those who are in none."""
    others = set(broker.accounts) - {GLOBAL, broker.directory.system.name}
    if not others:
        return {GLOBAL: JetStreamLimits()}
    configs = [account.config for account in broker.accounts.values()]
    return {each.name: each.jetstream for each in configs if each.jetstream is not None}


class Journal:
    """The engines of one server on its event loop."""

    def __init__(self, broker: Broker, config: JetStreamConfig) -> None:
        self.config = config
        self._broker = broker
        self._disk = RealDisk()
        self._remotes = self._open_remotes()
        self.engines: dict[str, Engine] = {}
        """One for each account that has JetStream."""
        for name, limits in jetstream_accounts(broker).items():
            self._add(broker.accounts[name], limits)
        system = broker.directory.system
        others = broker.accounts.keys() - self.engines.keys()
        self._refusals = {
            name: Refusal(broker.accounts[name], is_system=name == system.name) for name in others
        }
        self._purge = AccountPurge(system, self.engines)
        self._housekeeping = deque(self.engines.values())
        """Who is next to be asked whether it wants housekeeping."""
        # All engines share their deadlines and their commits, so any of them stands for all.
        self._first = next(iter(self.engines.values()), None)
        self._lock: Lock | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-journal")
        self.commits = 0
        """Commits that went to the disk."""
        self.commit_s = 0.0
        """How long they took together."""
        self._job: asyncio.Future[None] | None = None
        """What the thread is doing."""
        self._began_s: float | None = None
        """Since when it does."""
        self._unsynced: list[Work] = []
        self._synced_bytes = 0
        """How much was appended when the last sync began."""
        self._kept_house_s = 0.0
        self._deadline_ns: int | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def _open_remotes(self) -> Remotes | None:
        if not self.config.remotes:
            return None
        # A server that copies from no other has no use for a client.
        from penstock.net.remotes import Remotes

        name = f"penstock {self._broker.server_name}"
        return Remotes(self.config.remotes, name=name, flush=lambda: self._reactor.flush())

    def _add(self, account: Account, limits: JetStreamLimits) -> None:
        remotes = self._remotes.of_account(account.name) if self._remotes is not None else None
        self.engines[account.name] = Engine(
            account,
            self.config,
            server_name=self._broker.server_name,
            clock_ns=self._broker.clock_ns,
            random=random.random,
            files=StreamFiles(
                self._disk,
                self.config.store_dir,
                account.name,
                FileSettings(index_bytes_max=self.config.index_bytes_max),
            ),
            limits=limits,
            remotes=remotes,
            beside=next(iter(self.engines.values()), None),
        )

    def follow_accounts(self) -> None:
        """Give JetStream to the accounts that have it now, within the limits they have now."""
        for name, limits in jetstream_accounts(self._broker).items():
            if name in self.engines:
                self.engines[name].limits = limits
                continue
            if name in self._refusals:
                self._refusals.pop(name).close()
            self._add(self._broker.accounts[name], limits)
            self._housekeeping.append(self.engines[name])
            self._first = self._first or self.engines[name]
            self.engines[name].open()
        for name in self._broker.accounts.keys() - self.engines.keys() - self._refusals.keys():
            self._refusals[name] = Refusal(self._broker.accounts[name], is_system=False)
            self._refusals[name].open()

    def open(self) -> None:
        """Lock the store directory and bring back what is in it. Blocks."""
        directory = f"{self.config.store_dir}/jetstream"
        try:
            self._disk.make_directory(directory)
            self._lock = self._disk.lock(directory)
        except OSError as error:
            reason = error.strerror or error
            raise StoreError(f"store directory `{directory}` can not be used: {reason}") from error
        log.info("Starting JetStream")
        log.info("  Store Directory: %s", directory)
        log.info("  Sync:            %s", self._describe_sync())
        for engine in self.engines.values():
            engine.open()
        for refusal in self._refusals.values():
            refusal.open()
        self._purge.open()
        streams = sum(len(engine.streams) for engine in self.engines.values())
        log.info("  Streams:         %d", streams)

    def _describe_sync(self) -> str:
        sync = self.config.sync
        return "always, before the ack" if sync == "always" else f"every {sync:g} s"

    def attach(self, reactor: Reactor) -> None:
        """Start to work on the reactor's loop."""
        self._reactor = reactor
        self._loop = reactor.loop
        reactor.before_flush = self.on_tick
        self._every(HOUSEKEEPING_S, self._keep_house)
        if self.config.sync != "always":
            self._every(self.config.sync, self._sync)
        self.on_tick()

    def on_tick(self) -> None:
        """Begin a commit if there is anything new and none is under way; watch the clock."""
        engine = self._first
        if engine is None:
            return
        for _ in range(COMMITS_MAX):
            if self._job is not None or not engine.dirty:
                break
            self._commit(engine)
        deadline_ns = engine.timers.next_deadline_ns()
        if deadline_ns != self._deadline_ns:
            self._arm(engine, deadline_ns)

    def _commit(self, engine: Engine) -> None:
        if not engine.waits_for_sync:
            works, prompt = engine.write_unsynced()
            self._unsynced += works
            if prompt is not None:
                self._run(lambda: self._measure(prompt.run), lambda: self._finish(prompt))
            elif self._appended_bytes() - self._synced_bytes > UNSYNCED_BYTES_MAX:
                self._sync()
            return
        commit = engine.begin_commit()
        assert commit is not None, "somebody is dirty"
        if commit.is_slow:
            self._run(lambda: self._measure(commit.run), lambda: self._finish(commit))
        else:
            commit.finish()

    def _finish(self, commit: Commit) -> None:
        """Answer; what deleted streams have left goes away between two commits."""
        commit.finish()
        if self._first is not None and self._first.rubbish:
            self._keep_house_now()

    def _measure(self, run: Callable[[], None]) -> None:
        start_s = time.perf_counter()
        run()
        self.commit_s += time.perf_counter() - start_s
        self.commits += 1

    def _run(self, run: Callable[[], None], finish: Callable[[], None]) -> None:
        """Do something in the thread, then go on here."""
        self._job = self._loop.create_future()
        self._began_s = self._loop.time()
        # Not `run_in_executor`: its futures take the loop two turns more.
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
        # The next commit begins before the acks of this one are written.
        self._reactor.flush()

    def _arm(self, engine: Engine, deadline_ns: int | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline_ns, self._deadline = deadline_ns, None
        if deadline_ns is not None:
            delay_ns = min(max(deadline_ns - engine.clock_ns(), 0), DEADLINE_NS_MAX)
            self._deadline = self._loop.call_later(delay_ns / 1e9, self._on_deadline, engine)

    def _on_deadline(self, engine: Engine) -> None:
        self._deadline_ns = self._deadline = None
        engine.timers.run(engine.clock_ns())
        self._reactor.flush()

    def _every(self, interval_s: float, action: Callable[[], None]) -> None:
        def again() -> None:
            self._timers.remove(handle)
            self._every(interval_s, action)
            action()

        handle = self._loop.call_later(interval_s, again)
        self._timers.append(handle)

    def _sync(self) -> None:
        """Make durable what was written since the last time."""
        if self._job is None and self._unsynced:
            works, self._unsynced = self._unsynced, []
            self._synced_bytes = self._appended_bytes()
            self._work(works, then=self._retry_failed, is_commit=True)

    def _appended_bytes(self) -> int:
        return sum([engine.appended_bytes for engine in self._housekeeping])

    def _retry_failed(self) -> None:
        for engine in self.engines.values():
            engine.retry_failed()

    def _keep_house(self) -> None:
        if self._job is None and self._first is not None and not self._first.dirty:
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
        together = Together(works)

        def finish() -> None:
            together.finish()
            then()

        run = together.run
        self._run((lambda: self._measure(run)) if is_commit else run, finish)

    @property
    def stuck_s(self) -> float:
        """For how long a commit has been under way that does not end; 0 if all is well."""
        if self._began_s is None:
            return 0.0
        passed_s = self._loop.time() - self._began_s
        return passed_s if passed_s > STUCK_S else 0.0

    async def leave_remotes(self) -> None:
        """Copy no more from other servers, and leave nothing behind there."""
        if self._remotes is None:
            return
        for engine in self.engines.values():
            for stream in engine.streams.values():
                stream.origins.close()
        await self._remotes.close()

    async def settle(self) -> None:
        """Return when nothing that was published so far still waits for the disk."""
        self.on_tick()
        while self._job is not None:
            await asyncio.wait([self._job])
            # The callback that takes the result runs after us.
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Make everything durable and let go of the directory."""
        self._cancel_timers()
        await self.settle()
        self._sync()
        await self.settle()
        # What was settled may have set another deadline.
        self._cancel_timers()
        self.release()

    def _cancel_timers(self) -> None:
        for timer in (*self._timers, self._deadline):
            if timer is not None:
                timer.cancel()
        self._timers.clear()

    def release(self) -> None:
        """Close the stores and let go of the directory; nothing may be under way."""
        self._executor.shutdown()
        for engine in self.engines.values():
            engine.close()
        if self._lock is not None:
            self._lock.release()
