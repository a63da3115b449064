"""
The server's messages under `$SYS`: user info, and connection events.

`$SYS.REQ.USER.INFO` answers any client with its user. Events go to the system account, and
are only made if somebody there listens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from penstock.config import accounts
from penstock.core.account import Account, Figures, sum_figures
from penstock.core.reports.clientinfo import client_info
from penstock.core.reports.messagetrace import of_system
from penstock.core.reports.record import user_of
from penstock.core.runs import message_count
from penstock.core.session import Session
from penstock.hot.wire import Op
from penstock.protocol import times
from penstock.protocol.version import FEATURE_FLAGS, NATS_VERSION

if TYPE_CHECKING:
    from penstock.core.broker import Broker

Json = dict[str, Any]

USER_INFO = b"$SYS.REQ.USER.INFO"
JETSTREAM_ENABLED = 1
"""The only capability flag of `server.flags` that applies here."""
EVENT_TYPE = "io.nats.server.advisory.v1"
NOTHING = {"msgs": 0, "bytes": 0}


class System:
    """Answers `$SYS.REQ.USER.INFO`, and sends events to the system account."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sequences = count(1)

    def install(self, account: Account) -> None:
        """Start answering the requests of an account."""
        to = f"$SYS.REQ.USER.{account.name}.INFO".encode()
        account.listen(USER_INFO, self.answer, traced=of_system(account, self.answer, to))

    def answer(self, batch: list[Op], publisher: Session | None) -> None:
        """Answer a client with its user. A request without a reply subject gets no answer."""
        if publisher is None:
            return
        for run in batch:
            reply = run[2]
            for _ in range(message_count(run) if reply else 0):
                document = {"server": self.server(), "data": user_info(publisher)}
                publisher.account.send(reply, encode(document))

    def connected(self, session: Session) -> None:
        """Report a new client. Like nats-server, report none of the global account."""
        account = session.account
        if account.name != accounts.GLOBAL:
            self._connections_changed(account)
            self._tell(f"$SYS.ACCOUNT.{account.name}.CONNECT", "client_connect", session)

    def disconnected(self, session: Session, reason: str) -> None:
        """Report that a client has gone."""
        account = session.account
        if account.name != accounts.GLOBAL:
            self._connections_changed(account)
        kind = f"$SYS.ACCOUNT.{account.name}.DISCONNECT"
        self._tell(kind, "client_disconnect", session, reason=reason)

    def refused(self, session: Session) -> None:
        """Report a failed authentication."""
        kind = f"$SYS.SERVER.{self._broker.server_id}.CLIENT.AUTH.ERR"
        self._tell(kind, "client_disconnect", session, reason="Authentication Failure")

    def said(self, kind: str, make: Callable[[], Json] | None = None) -> None:
        """Publish an event about the server: `SHUTDOWN`, `LAMEDUCK`, or `STATSZ` with figures."""
        subject = f"$SYS.SERVER.{self._broker.server_id}.{kind}".encode()
        if self._is_heard(subject):
            server = self.server()
            self._account.send(subject, encode({"server": server} | make() if make else server))

    def connections_event(self, account: Account) -> Json:
        """Return the event for a change of an account's connections."""
        return self._event("account_connections") | account_stats(self._broker, account)

    def server(self) -> Json:
        """Return the description of this server, with the time."""
        broker = self._broker
        has_jetstream = broker.config.jetstream is not None
        server = {
            "name": broker.server_name,
            "host": broker.info["host"],
            "id": broker.server_id,
            "domain": broker.config.jetstream.domain if broker.config.jetstream else None,
            "ver": NATS_VERSION,
            "feature_flags": FEATURE_FLAGS,
            "tags": list(broker.config.server_tags),
            "metadata": dict(broker.config.server_metadata),
        }
        return {name: value for name, value in server.items() if value} | {
            "jetstream": has_jetstream,
            "flags": JETSTREAM_ENABLED if has_jetstream else 0,
            "seq": next(self._sequences),
            "time": times.timestamp(broker.clock_ns()),
        }

    @property
    def _account(self) -> Account:
        return self._broker.directory.system

    def _is_heard(self, subject: bytes) -> bool:
        return self._account.has_interest(subject)

    def _event(self, kind: str) -> Json:
        return {
            "type": f"{EVENT_TYPE}.{kind}",
            "id": self._broker.directory.new_id(),
            "timestamp": times.timestamp(self._broker.clock_ns()),
            "server": self.server(),
        }

    def _connections_changed(self, account: Account) -> None:
        for form in ("$SYS.SERVER.ACCOUNT.{}.CONNS", "$SYS.ACCOUNT.{}.SERVER.CONNS"):
            subject = form.format(account.name).encode()
            if self._is_heard(subject):
                self._account.send(subject, encode(self.connections_event(account)))

    def _tell(self, name: str, kind: str, session: Session, reason: str = "") -> None:
        subject = name.encode()
        if not self._is_heard(subject):
            return
        client = client_info(session) | {"name_tag": session.account.config.label}
        event = self._event(kind) | {"client": client}
        if reason:
            client["stop"] = times.timestamp(self._broker.clock_ns())
            event["sent"] = {"msgs": session.out_messages, "bytes": session.out_bytes}
            event["received"] = {"msgs": session.in_messages, "bytes": session.in_bytes}
            event["reason"] = reason
        self._account.send(subject, encode(event))


def encode(document: Json) -> bytes:
    """Return a document as JSON."""
    return json.dumps(document, separators=(",", ":")).encode()


def account_stats(broker: Broker, account: Account, own: list[Figures] | None = None) -> Json:
    """Return the figures of an account; `own` are those of its connections, if already at hand."""
    if own is None:
        own = [each.figures for each in broker.sessions.values() if each.account is account]
    figures = sum_figures((account.closed_figures, *own))
    elsewhere = {name: NOTHING for name in ("gateways", "routes", "leafs")}
    return {
        "acc": account.name,
        "name": account.config.label,
        "conns": account.connections,
        "leafnodes": 0,
        "total_conns": account.connections,
        "num_subscriptions": len(account.routes.trie),
        "sent": {"msgs": figures[2], "bytes": figures[3]} | elsewhere,
        "received": {"msgs": figures[0], "bytes": figures[1]} | elsewhere,
        "slow_consumers": account.slow_consumers,
    }


def user_info(session: Session) -> Json:
    """Return what a client may know about its own user."""
    account, identity = session.account, session.identity
    info: Json = {
        "user": user_of(session),
        "account": account.name,
        "account_name": account.config.label,
    }
    if identity is None:
        return info
    if identity.label:
        info["user_name"] = identity.label
    if identity.permissions is not None:
        info["permissions"] = _permissions(identity.permissions)
    if identity.expires_s:
        left_ns = int(identity.expires_s * times.SECOND_NS) - session.broker.clock_ns()
        info["expires"] = max(left_ns, 0)
    return info


def _permissions(rules: accounts.Permissions) -> Json:
    document: Json = {
        "publish": _subject_rules(rules.publish),
        "subscribe": _subject_rules(rules.subscribe),
    }
    if rules.allow_responses is not None:
        expires_ns = int(rules.allow_responses.expires_s * times.SECOND_NS)
        document["responses"] = {"max": rules.allow_responses.messages_max, "ttl": expires_ns}
    return document


def _subject_rules(rules: accounts.SubjectRules) -> dict[str, list[str]]:
    """Return the rules without empty lists, as nats-server does."""
    lists = {"allow": list(rules.allow or ()), "deny": list(rules.deny)}
    return {name: subjects for name, subjects in lists.items() if subjects}
