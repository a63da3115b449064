"""
Find out which sockets of the reactor are ready.

On a `ServerLoop` the sockets are in the loop's own epoll set, and ready ones are served
inside its `select`: one system call per tick, and no asyncio between the kernel and us. On
any other loop the sockets are in our own epoll set, and the loop watches the descriptor of
that set. Without epoll, `selectors` replaces it.
"""

from __future__ import annotations

import asyncio
import logging
import select
import selectors
from collections.abc import Callable, Mapping
from contextvars import Context
from time import monotonic
from typing import Any, Protocol, TypeVarTuple

log = logging.getLogger("penstock")

READ, WRITE = 1, 4
"""The values of EPOLLIN and EPOLLOUT; events of other selectors are translated to them."""

SPIN_S = 0.0001
CREDIT_MAX = 4
SERVED_FOR_CREDIT = 32
"""The number of ticks between two attempts to spin after recent ones failed."""

Ts = TypeVarTuple("Ts")
Serve = Callable[[list[tuple[int, int]]], None]
"""Called with (descriptor, mask) for every ready socket."""


class Poller(Protocol):
    """A set of descriptors, each watched for some events, or only for errors."""

    def register(self, fd: int, mask: int) -> None:
        """Start watching."""

    def modify(self, fd: int, mask: int) -> None:
        """Watch for other events."""

    def unregister(self, fd: int) -> None:
        """Stop watching."""

    def close(self) -> None:
        """Remove everything from the event loop."""


def poller_for(loop: asyncio.AbstractEventLoop, serve: Serve) -> Poller:
    """Return the cheapest poller this loop allows."""
    if isinstance(loop, ServerLoop):
        return LoopPoller(loop.server_selector, serve)
    if hasattr(select, "epoll"):
        return EpollPoller(loop, serve)
    return SelectorPoller(loop, serve)


class ServerSelector(selectors.BaseSelector):
    """
    An asyncio selector that serves the sockets of servers itself.

    It goes on as long as asyncio has nothing to do: a turn of asyncio's loop costs as much as
    a small request.

    If the processor goes to sleep between a request and its reply, waking up takes longer
    than serving both. So for `spin_s` after serving, the selector polls again instead of
    sleeping, as long as that pays off.
    """

    def __init__(self, spin_s: float = 0.0) -> None:
        self.epoll = select.epoll()
        self._spin_s = spin_s
        self._credit = CREDIT_MAX if spin_s else 0
        self._misses = self._served = 0
        self._is_put_off = False
        """Whether the servers' sockets had to wait for an event of asyncio."""
        self.is_called = False
        """Whether asyncio has something to do since the last look at the sockets."""
        self.servers: dict[int, Serve] = {}
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Start watching a descriptor for asyncio."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, fd, events, data)
        if fd in self._keys:
            raise KeyError(f"descriptor {fd} is already registered")
        self.epoll.register(fd, _mask(events))
        self._keys[fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Stop watching a descriptor for asyncio."""
        key = self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())
        try:
            self.epoll.unregister(key.fd)
        except OSError:
            # Closed before it was unregistered, so the kernel has forgotten it already.
            pass
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Serve the servers' sockets; return the ready descriptors of asyncio."""
        self.is_called = False
        end_s = None if timeout is None else monotonic() + timeout
        while True:
            theirs = self._serve_ready(timeout)
            if theirs is not None or self.is_called:
                return theirs or []
            if end_s is not None:
                timeout = end_s - monotonic()
                if timeout <= 0:
                    return []

    def _serve_ready(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]] | None:
        """Serve once; return the ready descriptors of asyncio, None if only servers had any."""
        ready = self._spin(timeout) if self._credit else []
        if not ready:
            ready = self.epoll.poll(timeout)
        servers, keys = self.servers, self._keys
        theirs: list[tuple[selectors.SelectorKey, int]] = []
        by_server: dict[Serve, list[tuple[int, int]]] = {}
        for event in ready:
            serve = servers.get(event[0])
            if serve is not None:
                by_server.setdefault(serve, []).append(event)
            elif event[0] in keys:
                theirs.append((keys[event[0]], _events(event[1])))
        if not by_server:
            return theirs
        self._is_put_off = bool(theirs) and not self._is_put_off
        if self._is_put_off:
            # The result of a thread goes first, once: somebody waits for it.
            return theirs
        self._serve(by_server)
        if self._spin_s and self._credit < CREDIT_MAX:
            self._earn_credit()
        return theirs or None

    def _spin(self, timeout: float | None) -> list[tuple[int, int]]:
        """Poll repeatedly for a moment; a failed attempt uses up credit."""
        poll = self.epoll.poll
        end_s = monotonic() + (self._spin_s if timeout is None else min(timeout, self._spin_s))
        while True:
            ready = poll(0)
            if ready or monotonic() >= end_s:
                break
        if ready:
            self._misses = 0
        else:
            self._credit -= 1
            self._misses += 1
        return ready

    def _earn_credit(self) -> None:
        """Grant another attempt: at once while attempts succeed, rarely while they fail."""
        self._served += 1
        if not self._misses or self._served >= SERVED_FOR_CREDIT:
            self._credit += 1
            self._served = 0

    def _serve(self, by_server: dict[Serve, list[tuple[int, int]]]) -> None:
        for serve, events in by_server.items():
            try:
                serve(events)
            except Exception:
                # Raised from here, the error would end the event loop.
                log.exception("! internal error")

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return asyncio's descriptors."""
        return self._keys

    def close(self) -> None:
        """Close the epoll set."""
        self.epoll.close()
        self._keys.clear()


class ServerLoop(asyncio.SelectorEventLoop):
    """The event loop of a process, or a thread, whose main job is to serve."""

    def __init__(self, spin_s: float = 0.0) -> None:
        self.server_selector = ServerSelector(spin_s)
        super().__init__(self.server_selector)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call back in the next turn, which begins when the sockets that are ready are served."""
        self.server_selector.is_called = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a time, which may be sooner than the selector would wait for."""
        self.server_selector.is_called = True
        return super().call_at(when, callback, *args, context=context)


def new_event_loop(spin_s: float = 0.0) -> asyncio.AbstractEventLoop:
    """Return the best loop for a server on this system; a factory for `asyncio.Runner`."""
    return ServerLoop(spin_s) if hasattr(select, "epoll") else asyncio.new_event_loop()


class LoopPoller:
    """Watches sockets in the loop's own epoll set."""

    def __init__(self, selector: ServerSelector, serve: Serve) -> None:
        self._selector = selector
        self._serve = serve
        self._fds: set[int] = set()

    def register(self, fd: int, mask: int) -> None:
        """Start watching."""
        self._selector.epoll.register(fd, mask)
        self._selector.servers[fd] = self._serve
        self._fds.add(fd)

    def modify(self, fd: int, mask: int) -> None:
        """Watch for other events."""
        self._selector.epoll.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        """Stop watching."""
        self._selector.epoll.unregister(fd)
        del self._selector.servers[fd]
        self._fds.remove(fd)

    def close(self) -> None:
        """Remove everything from the event loop."""
        for fd in tuple(self._fds):
            self.unregister(fd)


class EpollPoller:
    """Watches sockets in a separate epoll set, which is one descriptor to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, serve: Serve) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._serve = serve
        self.register = self._epoll.register
        self.modify = self._epoll.modify
        self.unregister = self._epoll.unregister
        loop.add_reader(self._epoll.fileno(), self._tick)

    def _tick(self) -> None:
        self._serve(self._epoll.poll(0))

    def close(self) -> None:
        """Remove everything from the event loop."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()


class SelectorPoller:
    """Like `EpollPoller`, with whatever selector the system has."""

    def __init__(self, loop: asyncio.AbstractEventLoop, serve: Serve) -> None:
        self._loop = loop
        self._serve = serve
        self._selector = selectors.DefaultSelector()
        loop.add_reader(self._selector.fileno(), self._tick)

    def register(self, fd: int, mask: int) -> None:
        """Start watching."""
        if mask:
            self._selector.register(fd, _events(mask))

    def modify(self, fd: int, mask: int) -> None:
        """Watch for other events. A selector cannot watch for none, so it unregisters."""
        self.unregister(fd)
        self.register(fd, mask)

    def unregister(self, fd: int) -> None:
        """Stop watching."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _tick(self) -> None:
        self._serve([(key.fd, _mask(events)) for key, events in self._selector.select(0)])

    def close(self) -> None:
        """Remove everything from the event loop."""
        self._loop.remove_reader(self._selector.fileno())
        self._selector.close()


def _mask(events: int) -> int:
    return (READ if events & selectors.EVENT_READ else 0) | (
        WRITE if events & selectors.EVENT_WRITE else 0
    )


def _events(mask: int) -> int:
    # Errors and hang-ups count as both events, so that reader and writer find out.
    return (selectors.EVENT_READ if mask & ~WRITE else 0) | (
        selectors.EVENT_WRITE if mask & ~READ else 0
    )
