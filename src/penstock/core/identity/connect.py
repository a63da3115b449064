"""Read the options of a CONNECT as nats-server does, that is as Go does."""

from __future__ import annotations

import json
from typing import Any

from penstock.protocol.subjects import whole

OPTION_TYPES: dict[str, type] = {
    **dict.fromkeys(("verbose", "pedantic", "echo", "headers", "no_responders"), bool),
    **dict.fromkeys(("tls_required", "new_account"), bool),
    **dict.fromkeys(("user", "pass", "auth_token", "nkey", "sig", "jwt", "account"), str),
    **dict.fromkeys(("name", "lang", "version"), str),
    "protocol": int,
}
"""The CONNECT fields that the server uses, and their types."""


def read_options(text: bytes) -> dict[str, Any] | None:
    """
    Return the options of a CONNECT, or None if they are malformed.

    Unknown fields are dropped, because a session keeps its options as long as it lives.
    """
    try:
        given = json.loads(text.decode(errors="replace"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return {} if given is None else None
    # Go ignores the case of names, and takes null for a missing field.
    options = {name.lower(): value for name, value in given.items() if value is not None}
    known = {name: _text(options[name]) for name in OPTION_TYPES if name in options}
    if any(type(value) is not OPTION_TYPES[name] for name, value in known.items()):
        return None
    return known


def _text(value: Any) -> Any:
    """Return a value of which a text is read as Go does."""
    return whole(value) if isinstance(value, str) else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
