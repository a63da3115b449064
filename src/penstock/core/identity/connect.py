"""What a client says of itself in its CONNECT: read as nats-server, that is Go, reads it."""

from __future__ import annotations

import json
import re
from typing import Any

OPTION_TYPES: dict[str, type] = {
    **dict.fromkeys(("verbose", "pedantic", "echo", "headers", "no_responders"), bool),
    **dict.fromkeys(("tls_required", "new_account"), bool),
    **dict.fromkeys(("user", "pass", "auth_token", "nkey", "sig", "jwt", "account"), str),
    **dict.fromkeys(("name", "lang", "version"), str),
    "protocol": int,
}
"""The fields of a CONNECT that mean something, and what they have to be."""
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character, which JSON can write and no encoding can."""


def read_options(text: bytes) -> dict[str, Any] | None:
    """
    Return the options of a CONNECT, or None if they are not what they must be.

    A field that means nothing is dropped: a session keeps its options for as long as it lives.
    """
    try:
        given = json.loads(text.decode(errors="replace"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return {} if given is None else None
    # Go reads names in any case, and takes null for a field that is not there.
    options = {name.lower(): value for name, value in given.items() if value is not None}
    known = {name: _text(options[name]) for name in OPTION_TYPES if name in options}
    if any(type(value) is not OPTION_TYPES[name] for name, value in known.items()):
        return None
    return known


def _text(value: Any) -> Any:
    """Return a text as Go reads it: what is no character is U+FFFD."""
    return LONE_SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
