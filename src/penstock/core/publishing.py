"""Publishes with special rules: permissions, `verbose`, `pedantic`, mappings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.identity.permissions import RESERVED_REPLIES
from penstock.core.runs import single_messages
from penstock.hot.wire import HEADER_BYTES, Op
from penstock.protocol import subjects

if TYPE_CHECKING:
    from penstock.core.session import Session


def publish_carefully(session: Session, publishes: list[Op]) -> None:
    """Publish plain messages together, and the others one by one."""
    account = session.account
    plain: list[Op] = []
    for publish in account.mapped(publishes):
        is_understood = session.headers or not publish[HEADER_BYTES]
        if is_understood and not _calls_for_answer(session, publish):
            plain.append(publish)
            continue
        account.publish(plain, session)
        plain = []
        if not is_understood:
            session.fail("", "Protocol Violation")
            return
        for message in single_messages(publish):
            publish_one(session, message, lambda one: account.publish([one], session))
    account.publish_in_turn(plain, session)


def _calls_for_answer(session: Session, publish: Op) -> bool:
    """Tell whether each message of a run may need its own reply to the publisher."""
    _, subject, reply, *_ = publish
    return (
        session.verbose
        or (session.pedantic and not subjects.is_valid_literal(subject))
        or (session.permissions is not None and not session.permissions.allows(subject))
        or reply.startswith(RESERVED_REPLIES)
    )


def publish_one(session: Session, message: Op, publish: Callable[[Op], object]) -> str:
    """Publish one message if that is permitted; else return the error sent to the publisher."""
    _, subject, reply, *_ = message
    if session.pedantic and not subjects.is_valid_literal(subject):
        # Report it, but publish the message all the same.
        session.report("Invalid Publish Subject")
    if session.permissions is not None and not session.permissions.may_publish(subject):
        return session.violation(f"Publish to {subjects.quoted(subject)}")
    if reply.startswith(RESERVED_REPLIES):
        return session.violation(f"Publish with Reply of {subjects.quoted(reply)}")
    if session.verbose:
        session.write(b"+OK\r\n")
    publish(message)
    return ""
