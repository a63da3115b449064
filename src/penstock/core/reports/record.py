"""
A record of a connection, open or closed.

The server remembers ten thousand closed connections, so a record is small: it keeps none of
the buffers, routes and objects of its session.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from penstock.core.session import Session
from penstock.protocol.redaction import REDACTED

SUBSCRIPTIONS_MAX = 32
"""The maximum number of subscriptions in the record of a closed connection."""


class SubscriptionRecord(NamedTuple):
    """One subscription of a closed connection."""

    subject: bytes
    queue: bytes
    sid: bytes
    delivered: int
    messages_max: int


class SessionRecord:
    """The figures of a session, under the same names."""

    __slots__ = (
        "account_name",
        "client_id",
        "in_bytes",
        "in_messages",
        "ip",
        "kind",
        "language",
        "last_activity_ns",
        "name",
        "out_bytes",
        "out_messages",
        "outbox_bytes",
        "port",
        "reason",
        "round_trip_ns",
        "start_ns",
        "stop_ns",
        "subscription_count",
        "subscriptions",
        "tls",
        "user",
        "version",
    )

    def __init__(self, session: Session, *, reason: str = "", stop_ns: int = 0) -> None:
        self.client_id = session.client_id
        self.kind = session.kind
        self.ip = session.ip
        self.port = session.port
        self.tls = session.tls
        self.account_name = session.account.name
        self.user = user_of(session)
        options = session.connect_options
        self.name = _text(options.get("name"))
        self.language = _text(options.get("lang"))
        self.version = _text(options.get("version"))

        self.start_ns = session.start_ns
        self.last_activity_ns = session.last_activity_ns
        self.stop_ns = stop_ns
        self.reason = reason
        self.round_trip_ns = session.round_trip_ns

        self.in_messages = session.in_messages
        self.in_bytes = session.in_bytes
        self.out_messages = session.out_messages
        self.out_bytes = session.out_bytes
        self.outbox_bytes = session.outbox_bytes
        self.subscription_count = len(session.subscriptions)
        self.subscriptions: tuple[SubscriptionRecord, ...] = ()

    @classmethod
    def of_closed(cls, session: Session, reason: str, stop_ns: int) -> SessionRecord:
        """Record a session that ends now, with its first subscriptions."""
        record = cls(session, reason=reason, stop_ns=stop_ns)
        if session.subscriptions:
            record.subscriptions = tuple(
                SubscriptionRecord(
                    each.subject, each.queue, each.sid, each.delivered, each.messages_max
                )
                for each in islice(session.subscriptions.values(), SUBSCRIPTIONS_MAX)
            )
        return record


def user_of(session: Session) -> str:
    """Return the user of a connection; of a refused one, the claimed user. Never a token."""
    options, identity = session.connect_options, session.identity
    user = _text(options.get("user")) if identity is None else identity.user
    return REDACTED if not user and options.get("auth_token") else user


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
