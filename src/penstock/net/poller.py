"""
How the reactor learns which of its sockets are ready.

On an event loop made by `ServerLoop` the sockets stand in the loop's own epoll
set, and ready ones are served inside its `select`: one system call a tick, and
nothing of asyncio between the kernel and us. On any other loop they stand in a
set of our own whose descriptor the loop watches, as it would watch a socket.
Without epoll, `selectors` stands in for it.
"""

from __future__ import annotations

import asyncio
import logging
import select
import selectors
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Protocol

log = logging.getLogger("penstock")

READ, WRITE = 1, 4
"""The values of EPOLLIN and EPOLLOUT, and what other selectors are translated to."""

SPIN_S = 0.0001
CREDIT_MAX = 4
SERVED_FOR_CREDIT = 32
"""Ticks between two tries to spin where the last ones were in vain."""

Serve = Callable[[list[tuple[int, int]]], None]
"""Called with (descriptor, mask) for everything that is ready."""


class Poller(Protocol):
    """A set of descriptors, each watched for some events, or for none but errors."""

    def register(self, fd: int, mask: int) -> None:
        """Start to watch."""

    def modify(self, fd: int, mask: int) -> None:
        """Watch for something else."""

    def unregister(self, fd: int) -> None:
        """Stop to watch."""

    def close(self) -> None:
        """Leave the event loop as it was."""


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

    A processor that goes to sleep between a request and its reply takes longer to
    wake up than the server takes to serve both. So for `spin_s` after something was
    served it looks again instead of sleeping, as long as that keeps paying off.
    """

    def __init__(self, spin_s: float = 0.0) -> None:
        self.epoll = select.epoll()
        self._spin_s = spin_s
        self._credit = CREDIT_MAX if spin_s else 0
        self._misses = self._served = 0
        self._is_put_off = False
        """Whether the sockets of servers had to wait for something of asyncio's."""
        self.servers: dict[int, Serve] = {}
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Start to watch a descriptor for asyncio."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, fd, events, data)
        if fd in self._keys:
            raise KeyError(f"descriptor {fd} is already registered")
        self.epoll.register(fd, _mask(events))
        self._keys[fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Stop to watch a descriptor for asyncio."""
        key = self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())
        try:
            self.epoll.unregister(key.fd)
        except OSError:
            # Closed before it was unregistered, so the kernel has forgotten it already.
            pass
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Serve the sockets of servers; return what is ready of asyncio's own."""
        ready = self._spin(timeout) if self._credit else []
        if not ready:
            ready = self.epoll.poll(timeout)
        keys = self._keys
        theirs = [(keys[fd], _events(mask)) for fd, mask in ready if fd in keys]
        if len(theirs) < len(ready):
            self._is_put_off = bool(theirs) and not self._is_put_off
            if self._is_put_off:
                # What a thread has done goes first, once: somebody waits for it.
                return theirs
            self._serve([event for event in ready if event[0] not in keys] if theirs else ready)
            if self._spin_s and self._credit < CREDIT_MAX:
                self._earn_credit()
        return theirs

    def _spin(self, timeout: float | None) -> list[tuple[int, int]]:
        """Look again for a moment; each look that finds nothing uses up credit."""
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
        """Allow another try: at once while tries succeed, seldom while they do not."""
        self._served += 1
        if not self._misses or self._served >= SERVED_FOR_CREDIT:
            self._credit += 1
            self._served = 0

    def _serve(self, ready: list[tuple[int, int]]) -> None:
        by_server: dict[Serve, list[tuple[int, int]]] = {}
        for event in ready:
            serve = self.servers.get(event[0])
            if serve is not None:
                by_server.setdefault(serve, []).append(event)
        for serve, events in by_server.items():
            try:
                serve(events)
            except Exception:
                # Raised here it would end the event loop.
                log.exception("! internal error")

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return asyncio's descriptors."""
        return self._keys

    def close(self) -> None:
        """Give the descriptor back."""
        self.epoll.close()
        self._keys.clear()


class ServerLoop(asyncio.SelectorEventLoop):
    """The event loop of a process, or a thread, that is there to serve."""

    def __init__(self, spin_s: float = 0.0) -> None:
        self.server_selector = ServerSelector(spin_s)
        super().__init__(self.server_selector)


def new_event_loop(spin_s: float = 0.0) -> asyncio.AbstractEventLoop:
    """Return the best loop for a server on this system: for `asyncio.Runner`."""
    return ServerLoop(spin_s) if hasattr(select, "epoll") else asyncio.new_event_loop()


class LoopPoller:
    """Our sockets in the epoll set of the loop itself."""

    def __init__(self, selector: ServerSelector, serve: Serve) -> None:
        self._selector = selector
        self._serve = serve
        self._fds: set[int] = set()

    def register(self, fd: int, mask: int) -> None:
        """Start to watch."""
        self._selector.epoll.register(fd, mask)
        self._selector.servers[fd] = self._serve
        self._fds.add(fd)

    def modify(self, fd: int, mask: int) -> None:
        """Watch for something else."""
        self._selector.epoll.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        """Stop to watch."""
        self._selector.epoll.unregister(fd)
        del self._selector.servers[fd]
        self._fds.remove(fd)

    def close(self) -> None:
        """Leave the event loop as it was."""
        for fd in tuple(self._fds):
            self.unregister(fd)


class EpollPoller:
    """Our sockets in an epoll set of their own, which is one descriptor to the loop."""

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
        """Leave the event loop as it was."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()


class SelectorPoller:
    """What `EpollPoller` is, on whatever selector the system has."""

    def __init__(self, loop: asyncio.AbstractEventLoop, serve: Serve) -> None:
        self._loop = loop
        self._serve = serve
        self._selector = selectors.DefaultSelector()
        loop.add_reader(self._selector.fileno(), self._tick)

    def register(self, fd: int, mask: int) -> None:
        """Start to watch."""
        if mask:
            self._selector.register(fd, _events(mask))

    def modify(self, fd: int, mask: int) -> None:
        """Watch for something else. A selector cannot watch for nothing, so it forgets."""
        self.unregister(fd)
        self.register(fd, mask)

    def unregister(self, fd: int) -> None:
        """Stop to watch."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _tick(self) -> None:
        self._serve([(key.fd, _mask(events)) for key, events in self._selector.select(0)])

    def close(self) -> None:
        """Leave the event loop as it was."""
        self._loop.remove_reader(self._selector.fileno())
        self._selector.close()


def _mask(events: int) -> int:
    return (READ if events & selectors.EVENT_READ else 0) | (
        WRITE if events & selectors.EVENT_WRITE else 0
    )


def _events(mask: int) -> int:
    # An error or a hang-up is for the reader and the writer to find out about.
    return (selectors.EVENT_READ if mask & ~WRITE else 0) | (
        selectors.EVENT_WRITE if mask & ~READ else 0
    )
