"""
Find out who sessions are while they wait: by bcrypt on a thread, or by asking a service.

bcrypt is slow by design, and strangers may ask for as much of it as they like. So there are
no more checks at a time than processors, a bounded number waits and no longer than a client
has to authenticate, and who has gone meanwhile is not checked at all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.auth import Check, Identity, Pending, Question
from penstock.core.session import Session

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

log = logging.getLogger("penstock")

TIMEOUT = "Authentication Timeout"
HUNG_UP = getattr(select, "POLLRDHUP", 0)
"""Where the system cannot tell, only a connection that was reset has gone."""
BUSY = "Too many passwords wait to be checked. Please try again later."


class Checks:
    """The checks of one server."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._waiting: deque[tuple[Session, Check]] = deque()
        self._running = 0
        self._running_max = os.cpu_count() or 1

    def start(self, session: Session) -> None:
        """Find out who a session is, then let it go on."""
        check = session.check
        if isinstance(check, Question):
            self._ask(session, check)
            return
        assert isinstance(check, Check)
        if session.identity is None:
            # Who was let in before a reload stays until it is known better.
            if not self._has_room():
                self._turn_away(session)
                return
            timeout_s = self._reactor.broker.auth_timeout_s(session.kind)
            self._reactor.loop.call_later(timeout_s, self._give_up, session, check)
        if self._running < self._running_max:
            self._run(session, check)
        else:
            self._waiting.append((session, check))

    def _has_room(self) -> bool:
        waiting_max = self._reactor.limits.password_checks_max
        if len(self._waiting) >= waiting_max:
            _close_gone([session for session, check in self._waiting if _waits(session, check)])
            self._waiting = deque(each for each in self._waiting if _waits(*each))
        return len(self._waiting) < waiting_max

    def _turn_away(self, session: Session) -> None:
        log.error("! %s %s; hint: raise `password_checks_max`", session, BUSY)
        session.check = None
        session.fail(BUSY, TIMEOUT)

    def _give_up(self, session: Session, check: Check) -> None:
        if _waits(session, check):
            session.check = None
            session.fail(TIMEOUT, TIMEOUT)
            self._reactor.flush()

    def _run(self, session: Session, check: Check) -> None:
        self._running += 1
        future = self._reactor.loop.run_in_executor(None, check.run)
        future.add_done_callback(partial(self._done, session, check))

    def _done(self, session: Session, check: Check, done: asyncio.Future[bool]) -> None:
        self._running -= 1
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.error("! %s password check failed: %.200r", session, error)
        succeeded = not done.cancelled() and error is None and done.result()
        self._settle(session, check, check.verdict(succeeded))
        self._run_next()
        self._reactor.flush()

    def _run_next(self) -> None:
        """Run the check of the first in line who is still there."""
        while self._waiting and self._running < self._running_max:
            session, check = self._waiting.popleft()
            if _waits(session, check):
                _close_gone([session])
            if _waits(session, check):
                self._run(session, check)

    def _ask(self, session: Session, question: Question) -> None:
        """Ask the service that says who users are."""
        callouts = self._reactor.broker.callouts
        assert callouts is not None, "who asks was there from the start"
        callouts.ask(session, question, partial(self._settle, session, question))
        self._reactor.flush()

    def _settle(self, session: Session, check: Pending, identity: Identity | None) -> None:
        """Let a session go on, unless it has gone, or a reload has replaced what it waits for."""
        if not _waits(session, check):
            return
        session.settle(identity)
        if session.check is not None:
            # Behind the one CONNECT there was another.
            self.start(session)
        if session.transport is not None:
            self._reactor.watch(session.transport)


def _close_gone(sessions: list[Session]) -> None:
    """Close whose peer has hung up: what waits is not read from, so nobody has seen it."""
    poller = select.poll()
    transports = {session.transport.fd: session.transport for session in sessions}
    for fd in transports:
        poller.register(fd, HUNG_UP)
    for fd, _ in poller.poll(0):
        transports[fd].close("Client Closed")


def _waits(session: Session, check: Pending) -> bool:
    return session.check is check and session.closing is None
