"""
Time that passes only when everybody waits for it.

An event loop whose clock stands still while there is something to do, and jumps to
the next timer when there is not. Retries with a backoff of minutes, ack waits and
retention then take milliseconds, and nothing sleeps. Bus and embedded server have
to run on this loop; a server in another process lives in real time.

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
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

SETTLING_S = 0.002
"""How long the sockets must be quiet before time moves: loopback is fast, not instant."""

THREAD_POLL_S = 0.01
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
        self.threads_busy = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        if timeout <= 0:
            return super().select(0)
        if self.threads_busy:
            # A thread takes real time, and nothing may expire because of that.
            return super().select(THREAD_POLL_S)
        ready = super().select(SETTLING_S)
        if not ready:
            self._clock.elapsed_s += timeout
        return ready


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
        self._sockets.threads_busy += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self._sockets.threads_busy -= 1


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
