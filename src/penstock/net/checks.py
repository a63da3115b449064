"""
Find out who sessions are while they wait: by bcrypt on a thread, or by asking a service.

bcrypt is slow by design, and strangers may ask for as much of it as they like. So there are
no more checks at a time than processors, a bounded number waits and no longer than a client
has to authenticate, and who has gone meanwhile is not checked at all. Addresses take turns,
and when no more may wait, the one with the most in line makes room for others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.identity.auth import Check, Identity, Pending, Question
from penstock.core.session import Session

if TYPE_CHECKING:
    from penstock.net.reactor import Reactor

log = logging.getLogger("penstock")

TIMEOUT = "Authentication Timeout"
HUNG_UP = getattr(select, "POLLRDHUP", 0)
"""Where the system cannot tell, only a connection that was reset has gone."""
LET_IN = ""
"""The address of everybody who was let in before."""
BUSY = "Too many passwords wait to be checked. Please try again later."


class Checks:
    """The checks of one server."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._waiting: dict[str, deque[tuple[Session, Check]]] = {}
        """By address, in the order of their turns; together those who were let in before."""
        self._running = 0
        self._running_max = os.cpu_count() or 1

    def start(self, session: Session) -> None:
        """Find out who a session is, then let it go on."""
        check = session.check
        if isinstance(check, Question):
            self._ask(session, check)
            return
        assert isinstance(check, Check)
        # Who was let in before a reload stays until it is known better.
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
        """See that one more may wait: where it must, the longest line gives up its last."""
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
        return waiting >= self._reactor.limits.password_checks_max

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
        """Run the check of the next address's first in line who is still there."""
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
