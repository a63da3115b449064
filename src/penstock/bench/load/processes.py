"""
The processes of one run: start them, tell them when to begin and stop, collect their
results.

None of them survives the `with` block, whatever happens inside.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Self

from penstock.bench.load.worker import START, STOP, Job, main
from penstock.bench.report.result import Tally
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.scenarios import find

READY_S_MAX = 60.0
STOP_S_MAX = 5.0
REFRESH_S = 0.1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals for the command alone, which then tells the processes through their pipes."""


class CrewError(Exception):
    """A run could not start."""


@dataclass
class Member:
    """One process."""

    job: Job
    process: SpawnProcess
    pipe: Connection
    ready: bool = False
    tallies: list[Tally] | None = None
    """The measurements of its clients, once reported."""
    errors: list[str] = field(default_factory=list)


class LoadProcesses:
    """All processes of a run, alive inside a `with` block."""

    def __init__(self, plan: Plan, url: str) -> None:
        self._plan = plan
        self._jobs = share_out(plan, url, processes_max=os.cpu_count() or 1)
        self._context = multiprocessing.get_context("spawn")
        clients = sum(len(job.indexes) for job in self._jobs)
        self.counters: Any = self._context.RawArray("q", max(clients, 1))
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        try:
            with _signals_held():
                for job in self._jobs:
                    self.members.append(self._spawn(job))
        except BaseException:
            self._dismiss()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._dismiss()

    def prepare(self) -> None:
        """Return once every client is ready; raise if one fails."""
        deadline_s = time.monotonic() + READY_S_MAX
        while not all(member.ready for member in self.members):
            self.listen()
            errors = self.errors()
            if errors or time.monotonic() > deadline_s:
                raise CrewError("; ".join(errors) or "the clients were not ready in time")

    def start(self) -> None:
        """Let every client begin."""
        self._tell(START)

    def stop(self) -> None:
        """Stop all processes, and collect their measurements so far."""
        self._tell(STOP)
        deadline_s = time.monotonic() + STOP_S_MAX
        while any(member.tallies is None for member in self.members):
            self.listen()
            if time.monotonic() > deadline_s:
                return

    def listen(self) -> None:
        """Receive reports from the processes for a moment."""
        silent = {member.pipe: member for member in self.members if member.tallies is None}
        for pipe in wait(list(silent), REFRESH_S):
            assert isinstance(pipe, Connection)
            _hear(silent[pipe])

    def done(self, members: Sequence[Member]) -> bool:
        """Tell whether these processes have reported their measurements."""
        return all(member.tallies is not None for member in members)

    def errors(self) -> list[str]:
        """Return the errors, each once."""
        errors = [error for member in self.members for error in member.errors]
        tallies = [*self.tallies(publishing=True), *self.tallies(publishing=False)]
        return list(dict.fromkeys(errors + [tally.error for tally in tallies if tally.error]))

    def tallies(self, *, publishing: bool) -> list[Tally]:
        """Return the measurements of the clients of one side, in order."""
        members = [member for member in self.members if member.job.publishing == publishing]
        found = [
            pair
            for member in members
            for pair in zip(member.job.indexes, member.tallies or (), strict=False)
        ]
        return [tally for _, tally in sorted(found, key=lambda pair: pair[0])]

    def _spawn(self, job: Job) -> Member:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=main, args=(job, theirs, self.counters), daemon=True)
        process.start()
        theirs.close()
        return Member(job, process, ours)

    def _tell(self, word: str) -> None:
        for member in self.members:
            try:
                member.pipe.send(word)
            except OSError:
                continue  # It ended by itself; `listen` will notice.

    def _dismiss(self) -> None:
        for member in self.members:
            member.pipe.close()
        for member in self.members:
            member.process.join(STOP_S_MAX)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.process.close()


def share_out(plan: Plan, url: str, *, processes_max: int) -> list[Job]:
    """Distribute the clients of both sides over processes, subscribers first."""
    publishers, subscribers = find(plan.scenario).clients(plan)
    jobs = []
    for publishing, clients, first in ((False, subscribers, publishers), (True, publishers, 0)):
        processes = min(clients, processes_max)
        for process in range(processes):
            indexes = range(process, clients, processes)
            slots = [first + index for index in indexes]
            jobs.append(Job(plan, url, publishing, indexes, slots))
    return jobs


def _hear(member: Member) -> None:
    """Receive one report: first the errors of the preparation, then the measurements."""
    try:
        word = member.pipe.recv()
    except (EOFError, OSError):
        member.process.join(STOP_S_MAX)
        member.errors.append(f"a load process ended with code {member.process.exitcode}")
        member.ready, member.tallies = True, []
        return
    if not member.ready:
        member.ready = True
        member.errors += word
    else:
        member.tallies = word


@contextmanager
def _signals_held() -> Iterator[None]:
    """Block signals for a moment. Processes started in the meantime never see them."""
    # Python's own helper process has to run first: starting it unblocks SIGINT again.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
