"""
What a server says about itself, read with suspicion.

An INFO may come from anybody who can answer on a port, so a field has its type or the
INFO counts for nothing, and all of it is bounded. Fields that we never look at are kept
as they are, for whoever asks `client.info`.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from penstock.errors import ProtocolError

TYPES: dict[str, type] = {
    "connect_urls": list,
    "headers": bool,
    "ldm": bool,
    "max_payload": int,
    "nonce": str,
    "tls_available": bool,
    "tls_required": bool,
}
"""The fields that decide something here."""


def read_info(text: bytes) -> dict[str, Any]:
    """Return the fields of an INFO."""
    try:
        info = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the server's INFO cannot be read: {error}") from None
    if not isinstance(info, dict):
        raise ProtocolError("the server's INFO is no JSON object")
    for name, kind in TYPES.items():
        value = info.get(name)
        # A field that says nothing is as good as none: nats-server writes `null` for no URLs.
        if value is None:
            info.pop(name, None)
        elif type(value) is not kind:
            raise ProtocolError(f"the server's INFO is wrong: `{name}` is {_shown(value)}")
    _check_nonce(info.get("nonce", ""))
    return info


def _check_nonce(nonce: str) -> None:
    """A lone surrogate is valid JSON, and yet no text that could be signed."""
    try:
        nonce.encode()
    except UnicodeEncodeError:
        raise ProtocolError("the server's INFO is wrong: `nonce` is no text") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
