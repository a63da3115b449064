"""Who a client is, as events tell it: `ClientInfo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import times
from penstock.core.record import user_of

if TYPE_CHECKING:
    from penstock.core.session import Session

CLIENT_TYPES = {"websocket": "websocket"}
"""What kinds of connection are called; all others are `nats`."""


def client_info(session: Session, server: str) -> dict[str, Any]:
    """Return what is known of a client, without what is empty; `server` is where it is."""
    options = session.connect_options
    info: dict[str, Any] = {
        "start": times.timestamp(session.start_ns),
        "host": session.ip,
        "id": session.client_id,
        "acc": session.account.name,
        "user": user_of(session),
        "name": options.get("name"),
        "lang": options.get("lang"),
        "ver": options.get("version"),
        "rtt": session.round_trip_ns,
        "server": server,
        "kind": "Client",
        "client_type": CLIENT_TYPES.get(session.kind, "nats"),
    }
    return {name: value for name, value in info.items() if value}
