"""
A process that loads a server with some of the clients of a run.

It talks to its parent over a pipe. It reports errors once its clients are ready, starts on
command, sends the measurements when all clients are done or on a stop command, and ends
when the pipe is closed, by either side.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from penstock.bench.load.part import Part
from penstock.bench.report.machine import raise_open_files_limit
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.scenarios import Work, find
from penstock.client import Client, connect
from penstock.errors import PenstockError

START, STOP = "start", "stop"
CONNECTING_AT_ONCE = 32
CONNECTION: dict[str, Any] = {
    "name": "penstock bench",
    "connect_timeout_s": 10.0,
    "reconnect": False,
}
"""No reconnects: messages in flight when a connection is lost count as lost."""


class Job(NamedTuple):
    """The clients of one process."""

    plan: Plan
    url: str
    publishing: bool
    """The side of the clients."""
    indexes: Sequence[int]
    """The numbers of the clients on that side."""
    slots: Sequence[int]
    """The counter of each client, for the progress display."""


def main(job: Job, pipe: Connection, counters: Any) -> None:
    """Run the process. Signals are blocked in it: only the parent decides when to stop."""
    raise_open_files_limit()
    # The measured code creates no cycles; a garbage collection would only be a pause.
    gc.disable()
    asyncio.run(LoadWorker(job, pipe, counters).run())


class LoadWorker:
    """All clients of this process, and the pipe to the parent."""

    def __init__(self, job: Job, pipe: Connection, counters: Any) -> None:
        self._job = job
        self._pipe = pipe
        self._parts = [
            Part(job.plan, job.url, index, counters=counters, slot=slot, started=self._started)
            for index, slot in zip(job.indexes, job.slots, strict=True)
        ]
        self._unready = set(self._parts)
        self._clients: list[Client] = []
        self._start = asyncio.Event()
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        self._connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def run(self) -> None:
        """Connect, work, report, and leave once the parent knows."""
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._hear)
        tasks = [asyncio.create_task(self._play(part)) for part in self._parts]
        stop = asyncio.create_task(self._stop.wait())
        everything = asyncio.create_task(asyncio.wait(tasks))
        await asyncio.wait({everything, stop}, return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, everything, stop):
            task.cancel()
        await asyncio.gather(*tasks, everything, stop, return_exceptions=True)
        self._tell([part.tally() for part in self._parts])
        await self._gone.wait()
        await asyncio.gather(*(client.close() for client in self._clients))

    async def _play(self, part: Part) -> None:
        try:
            async with self._connecting:
                part.client = await connect(self._job.url, **CONNECTION)
            self._clients.append(part.client)
            await self._work()(part)
        except (PenstockError, OSError) as error:
            part.error = str(error)
        self._ready(part)

    async def _started(self, part: Part) -> None:
        self._ready(part)
        await self._start.wait()

    def _ready(self, part: Part) -> None:
        """Mark a client as ready; the last one notifies the parent."""
        if part in self._unready:
            self._unready.remove(part)
            if not self._unready:
                self._tell([part.error for part in self._parts if part.error])

    def _work(self) -> Work:
        scenario = find(self._job.plan.scenario)
        work = scenario.publish if self._job.publishing else scenario.subscribe
        assert work is not None, "a side without work has no clients"
        return work

    def _hear(self) -> None:
        try:
            word = self._pipe.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._stop.set()
            self._gone.set()
            return
        if word == START:
            self._start.set()
        else:
            self._stop.set()

    def _tell(self, word: Any) -> None:
        try:
            self._pipe.send(word)
        except BrokenPipeError:
            self._gone.set()
