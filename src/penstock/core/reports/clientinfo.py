"""The description of a client in requests to services and in events: `ClientInfo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.reports.record import user_of
from penstock.protocol import times

if TYPE_CHECKING:
    from penstock.core.session import Session


def client_info(session: Session) -> dict[str, Any]:
    """Return the description of a client, without empty fields."""
    options = session.connect_options
    return _said(
        {
            "start": times.timestamp(session.start_ns),
            "host": session.ip,
            "id": session.client_id,
            "acc": session.account.name,
            "user": user_of(session),
            "name": options.get("name"),
            "lang": options.get("lang"),
            "ver": options.get("version"),
            "rtt": session.round_trip_ns,
            "server": session.broker.server_name,
            "kind": "Client",
            "client_type": session.kind,
        }
    )


def client_account(session: Session) -> dict[str, Any]:
    """Return the part for services that the importing account does not share its clients with."""
    return _said({"acc": session.account.name, "rtt": session.round_trip_ns})


def _said(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
