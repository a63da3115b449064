"""
The server's own services under `$SYS`, as far as every client may ask for them.

`$SYS.REQ.USER.INFO` tells a client who it is to the server: its user, its
account and what it may do.
"""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any

from penstock import accounts, times
from penstock.core.account import Account, message_count
from penstock.core.record import user_of
from penstock.core.session import Session
from penstock.version import NATS_VERSION
from penstock.wire import Op

if TYPE_CHECKING:
    from penstock.core.broker import Broker

USER_INFO = b"$SYS.REQ.USER.INFO"
JETSTREAM_ENABLED = 1
"""The one capability flag of `server.flags` that says anything here."""


class UserInfo:
    """Answers `$SYS.REQ.USER.INFO`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sequences = count(1)

    def install(self, account: Account) -> None:
        """Answer the requests of an account."""
        account.listen(USER_INFO, self.answer)

    def answer(self, batch: list[Op], publisher: Session | None) -> None:
        """Tell a client who it is. Who gives no reply subject is told nothing."""
        if publisher is None:
            return
        for run in batch:
            reply = run[2]
            for _ in range(message_count(run) if reply else 0):
                document = {"server": self._server(), "data": user_info(publisher)}
                publisher.account.send(reply, json.dumps(document, separators=(",", ":")).encode())

    def _server(self) -> dict[str, Any]:
        broker = self._broker
        has_jetstream = broker.config.jetstream is not None
        server = {
            "name": broker.server_name,
            "host": broker.config.host,
            "id": broker.server_id,
            "ver": NATS_VERSION,
            "tags": list(broker.config.tags),
            "metadata": dict(broker.config.metadata),
        }
        return {name: value for name, value in server.items() if value} | {
            "jetstream": has_jetstream,
            "flags": JETSTREAM_ENABLED if has_jetstream else 0,
            "seq": next(self._sequences),
            "time": times.timestamp(broker.clock_ns()),
        }


def user_info(session: Session) -> dict[str, Any]:
    """Return what a client may know about itself."""
    name = session.account.name
    info: dict[str, Any] = {"user": user_of(session), "account": name, "account_name": name}
    rules = session.identity.permissions if session.identity is not None else None
    if rules is not None:
        info["permissions"] = _permissions(rules)
    return info


def _permissions(rules: accounts.Permissions) -> dict[str, Any]:
    document: dict[str, Any] = {
        "publish": _subject_rules(rules.publish),
        "subscribe": _subject_rules(rules.subscribe),
    }
    if rules.allow_responses is not None:
        expires_ns = int(rules.allow_responses.expires_s * times.SECOND_NS)
        document["responses"] = {"max": rules.allow_responses.messages_max, "ttl": expires_ns}
    return document


def _subject_rules(rules: accounts.SubjectRules) -> dict[str, list[str]]:
    """Return the rules; a list that is empty is left out, as in nats-server."""
    lists = {"allow": list(rules.allow or ()), "deny": list(rules.deny)}
    return {name: subjects for name, subjects in lists.items() if subjects}
