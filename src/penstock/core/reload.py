"""
Apply a new configuration while the server runs.

Users, permissions and limits change at once, and clients stay connected if the new rules
permit. Settings that are bound at start (addresses, server name, store) need a restart.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.config.server import ServerConfig
from penstock.core.broker import Broker
from penstock.core.identity.auth import Check, Pending
from penstock.core.identity.authenticators import authenticator_for, websocket_authenticator
from penstock.core.reports import trace
from penstock.core.session import Session

NEEDS_RESTART = (
    *("host", "port", "server_name", "http_host", "http_port", "https_port", "jetstream"),
    *("websocket.host", "websocket.port"),
)


def restart_settings(old: ServerConfig, new: ServerConfig) -> list[str]:
    """Return the names of changed settings that only a restart applies."""
    changed = [name for name in NEEDS_RESTART if _setting(old, name) != _setting(new, name)]
    if new.jetstream is not None and _streaming(old) - _streaming(new):
        changed.append("accounts.jetstream")
    if old.authorization.system_account_name != new.authorization.system_account_name:
        changed.append("system_account")
    if new.authorization.may_ask and not old.authorization.may_ask:
        changed.append("authorization.auth_callout")
    return changed


def _streaming(config: ServerConfig) -> set[str]:
    """Return the accounts that have JetStream."""
    accounts = config.authorization.all_accounts
    return {account.name for account in accounts if account.jetstream is not None}


def _setting(config: ServerConfig, name: str) -> object:
    value: object = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def apply(broker: Broker, config: ServerConfig) -> Iterable[Session]:
    """Apply users, permissions and limits; return the sessions that need a slow check."""
    old = broker.config
    broker.authenticator = authenticator_for(
        config.authorization, broker.verified, may_ask=broker.callouts is not None
    )
    broker.websocket_authenticator = websocket_authenticator(config.websocket, broker.verified)
    broker.config = config
    broker.directory.apply(config.authorization)
    broker.traces = trace.is_on()
    broker.info.pop("auth_required", None)
    if broker.authenticator.required:
        broker.info["auth_required"] = True
    sessions = list(broker.sessions.values())
    if config.limits != old.limits:
        _apply_limits(broker, sessions)
    if config.authorization == old.authorization and config.websocket == old.websocket:
        return []
    return [session for session in sessions if _identify_again(broker, session)]


def _apply_limits(broker: Broker, sessions: list[Session]) -> None:
    limits = broker.config.limits
    payload_changed = broker.info["max_payload"] != limits.max_payload
    broker.info["max_payload"] = limits.max_payload
    for session in sessions:
        session.set_limits()
        session.parser.control_line_bytes_max = limits.max_control_line
        session.congested_bytes = limits.congested_bytes
        if payload_changed and session.connect_options.get("protocol") == 1:
            session.write(broker.info_line(session))
    if limits.max_connections:
        # Close the newest connections.
        for session in sessions[limits.max_connections :]:
            session.fail("maximum connections exceeded", "Maximum Connections Exceeded")


def _must_identify(broker: Broker, session: Session) -> bool:
    return broker.authenticator_of(session.kind).required


def _identify_again(broker: Broker, session: Session) -> bool:
    """Apply the new rules to a session; tell whether it needs a slow check first."""
    if session.identity is None and session.check is None and _must_identify(broker, session):
        # It has not sent CONNECT yet, and will meet the new rules then.
        return False
    verdict = session.identify()
    if isinstance(verdict, Check) and verdict.identity is None:
        # The user is gone: refuse the session without running the decoy check.
        verdict = None
    if isinstance(verdict, Pending):
        session.check = verdict
        return True
    session.settle(verdict)
    return False
