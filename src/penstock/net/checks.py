"""
Authenticate waiting sessions: on a thread, by bcrypt or an account lookup, or by callout.

bcrypt is slow by design, and strangers may ask for any amount of it. So the number of
parallel checks is the number of processors. The number of waiting checks is bounded, and
none waits longer than the authentication timeout. A client that has gone is not checked at
all. Addresses take turns; when the queue is full, the address with the longest line gives
up a place.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.identity.auth import Identity, Lookup, Pending, Question, Slow
from penstock.core.session import Session

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

log = logging.getLogger("penstock")

TIMEOUT = "Authentication Timeout"
HUNG_UP = getattr(select, "POLLRDHUP", 0)
"""Where the system has no such flag, only a reset connection counts as gone."""
LET_IN = ""
"""The address of all sessions that were authenticated before."""
BUSY = "Too many passwords wait to be checked. Please try again later."


class CredentialChecks:
    """The checks of one server."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._waiting: dict[str, deque[tuple[Session, Slow]]] = {}
        """By address, in the order of turns. Sessions authenticated before share one line."""
        self._running = 0
        self._running_max = os.cpu_count() or 1

    def start(self, session: Session) -> None:
        """Authenticate a session, then let it go on."""
        check = session.check
        if isinstance(check, Question):
            self._ask(session, check)
            return
        assert isinstance(check, Slow)
        if isinstance(check, Lookup):
            check.elsewhere = self._reactor.broker.elsewhere
        # A session authenticated before a reload stays until the new verdict.
        address = LET_IN if session.identity is not None else session.ip
        if address != LET_IN:
            if not self._make_room(address):
                self._turn_away(session)
                return
            timeout_s = self._reactor.broker.auth_timeout_s(session.kind)
            self._reactor.loop.call_later(timeout_s, self._give_up, session, check)
        if self._running < self._running_max:
            self._run(session, check)
        else:
            self._waiting.setdefault(address, deque()).append((session, check))

    def _make_room(self, address: str) -> bool:
        """Make room for one more, if need be in the longest line; tell whether there is room."""
        if not self._is_full():
            return True
        self._forget_gone()
        if not self._is_full():
            return True
        lines = {each: line for each, line in self._waiting.items() if each != LET_IN}
        longest = max(lines.values(), key=len)
        if len(longest) <= len(lines.get(address, ())) + 1:
            return False
        self._turn_away(longest.pop()[0])
        return True

    def _is_full(self) -> bool:
        waiting = sum(len(line) for each, line in self._waiting.items() if each != LET_IN)
        return waiting >= self._reactor.limits.max_password_checks

    def _forget_gone(self) -> None:
        everybody = [each for line in self._waiting.values() for each in line]
        _close_gone([session for session, check in everybody if _waits(session, check)])
        for address, line in list(self._waiting.items()):
            left = deque(each for each in line if _waits(*each))
            if left:
                self._waiting[address] = left
            else:
                del self._waiting[address]

    def _turn_away(self, session: Session) -> None:
        log.error("! %s %s; hint: raise `max_password_checks`", session, BUSY)
        session.check = None
        session.fail(BUSY, TIMEOUT)

    def _give_up(self, session: Session, check: Slow) -> None:
        if _waits(session, check):
            session.check = None
            session.fail(TIMEOUT, TIMEOUT)
            self._reactor.flush()

    def _run(self, session: Session, check: Slow) -> None:
        self._running += 1
        future = self._reactor.loop.run_in_executor(None, check.run)
        future.add_done_callback(partial(self._done, session, check))

    def _done(self, session: Session, check: Slow, done: asyncio.Future[bool]) -> None:
        self._running -= 1
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.error("! %s cannot be checked: %.200r", session, error)
        succeeded = not done.cancelled() and error is None and done.result()
        self._settle(session, check, check.verdict(succeeded))
        self._run_next()
        self._reactor.flush()

    def _run_next(self) -> None:
        """Run the first check of the next address, skipping clients that have gone."""
        while self._waiting and self._running < self._running_max:
            address = next(iter(self._waiting))
            line = self._waiting.pop(address)
            session, check = line.popleft()
            if line:
                self._waiting[address] = line
            if _waits(session, check):
                _close_gone([session])
            if _waits(session, check):
                self._run(session, check)

    def _ask(self, session: Session, question: Question) -> None:
        """Ask the auth callout service."""
        callouts = self._reactor.broker.callouts
        assert callouts is not None, "who asks was there from the start"
        callouts.ask(session, question, partial(self._settle, session, question))
        self._reactor.flush()

    def _settle(self, session: Session, check: Pending, identity: Identity | None) -> None:
        """Apply a verdict, unless the session has gone or a reload has replaced its check."""
        if _waits(session, check):
            session.settle(identity)
            if session.check is not None:
                # Another CONNECT followed the first.
                self.start(session)
        if session.transport is not None:
            self._reactor.watch(session.transport)


def _close_gone(sessions: list[Session]) -> None:
    """Close sessions whose peer has hung up. They are not read from, so nothing else notices."""
    poller = select.poll()
    transports = {session.transport.fd: session.transport for session in sessions}
    for fd in transports:
        poller.register(fd, HUNG_UP)
    for fd, _ in poller.poll(0):
        transports[fd].close("Client Closed")


def _waits(session: Session, check: Pending) -> bool:
    return session.check is check and session.closing is None
