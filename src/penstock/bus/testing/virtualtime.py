"""
Time that passes only when everybody waits for it.

An event loop whose clock stands still while there is something to do, and jumps to
the next timer when there is not. Retries with a backoff of minutes, ack waits and
retention then take milliseconds, and nothing sleeps. Bus and embedded server have
to run on this loop; a server in another process lives in real time.

There is something to do as long as a job is on a thread, a connection is being made, or
bytes are on their way to one of our sockets, however long a busy machine takes for that.

The clock is virtual in every module of Penstock. Other code, and the timestamps of
envelopes, see the real one.
"""

from __future__ import annotations

import asyncio
import importlib
import selectors
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, TypeVar

from penstock.bus.testing.wire import is_carrying

T = TypeVar("T")

SETTLING_S = 0.002
"""How long the sockets must be quiet as well: the end of a connection is nothing to count."""

BUSY_POLL_S = 0.01
NANOSECONDS = 1_000_000_000


class VirtualTime:
    """A clock, and the way to run a coroutine by it."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        """How much time has passed."""
        self._start_s = time.monotonic()
        self._start_ns = time.time_ns()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, as `asyncio.run` does."""
        # The embedded server is imported late; its clocks are to be found now.
        importlib.import_module("penstock.bus.engines.embedded")
        with (
            _clocks_replaced(self._clocks()),
            _jobs_counted(),
            asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner,
        ):
            return runner.run(work)

    def monotonic(self) -> float:
        """Return what `time.monotonic` would."""
        return self._start_s + self.elapsed_s

    def time_ns(self) -> int:
        """Return what `time.time_ns` would."""
        return self._start_ns + round(self.elapsed_s * NANOSECONDS)

    def time(self) -> float:
        """Return what `time.time` would."""
        return self.time_ns() / NANOSECONDS

    def _clocks(self) -> dict[Callable[[], float], Callable[[], float]]:
        return {
            time.monotonic: self.monotonic,
            time.time_ns: self.time_ns,
            time.time: self.time,
        }


class _Selector(selectors.DefaultSelector):
    """Waits for sockets, and moves the clock instead of waiting for time."""

    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._clock = clock
        self.busy = 0
        """Jobs on threads, and connections that are being made."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        if timeout <= 0:
            return super().select(0)
        if self.busy or self._is_carrying():
            # That takes real time, and nothing may expire because of it.
            return super().select(BUSY_POLL_S)
        ready = super().select(SETTLING_S)
        if not ready:
            self._clock.elapsed_s += timeout
        return ready

    def _is_carrying(self) -> bool:
        keys = self.get_map().values()
        readers = [key.fd for key in keys if key.events & selectors.EVENT_READ]
        return is_carrying(readers, [key.fd for key in keys if key.fd not in readers])


class _Loop(asyncio.SelectorEventLoop):
    """An event loop by a virtual clock."""

    def __init__(self, clock: VirtualTime) -> None:
        self._clock = clock
        self._sockets = _Selector(clock)
        super().__init__(self._sockets)

    def time(self) -> float:
        return self._clock.monotonic()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._sockets.busy += 1
        future.add_done_callback(self._no_longer_busy)
        return future

    async def sock_connect(self, sock: Any, address: Any) -> None:
        self._sockets.busy += 1
        try:
            await super().sock_connect(sock, address)
        finally:
            self._sockets.busy -= 1

    def count(self, job: Future[Any]) -> None:
        """Let no time pass until a job on a thread is done."""
        self._sockets.busy += 1

        def done(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop is closed
                # Behind what the job itself has the loop do.
                self.call_soon_threadsafe(self._no_longer_busy)

        job.add_done_callback(done)

    def _no_longer_busy(self, _: Any = None) -> None:
        self._sockets.busy -= 1


@contextmanager
def _jobs_counted() -> Iterator[None]:
    """Have a loop by a virtual clock know of all it gives to threads."""
    submit = ThreadPoolExecutor.submit

    def counted(self: ThreadPoolExecutor, function: Any, /, *args: Any, **named: Any) -> Any:
        job = submit(self, function, *args, **named)
        loop = asyncio._get_running_loop()
        if isinstance(loop, _Loop):
            loop.count(job)
        return job

    ThreadPoolExecutor.submit = counted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]


class _TimeModule:
    """The `time` module with other clocks."""

    def __init__(self, clocks: dict[Callable[[], float], Callable[[], float]]) -> None:
        for real, virtual in clocks.items():
            setattr(self, real.__name__, virtual)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextmanager
def _clocks_replaced(clocks: dict[Callable[[], float], Callable[[], float]]) -> Iterator[None]:
    """Have every module of Penstock look at these clocks."""
    replaced: list[tuple[ModuleType, str, Any]] = []
    substitute = _TimeModule(clocks)
    for module in [sys.modules[name] for name in list(sys.modules) if _is_ours(name)]:
        for name, value in list(vars(module).items()):
            if value is time:
                replaced.append((module, name, value))
                setattr(module, name, substitute)
            elif callable(value) and getattr(value, "__module__", "") == "time":
                if value in clocks:
                    replaced.append((module, name, value))
                    setattr(module, name, clocks[value])
    try:
        yield
    finally:
        for module, name, value in replaced:
            setattr(module, name, value)


def _is_ours(name: str) -> bool:
    return name.startswith("penstock.") and name != __name__
