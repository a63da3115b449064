"""
Read a server's INFO with suspicion.

Anybody who can answer on a port can send an INFO. So a field of the wrong type makes the
whole INFO invalid, and every size is bounded. Fields we never use are kept unchanged for
callers of `client.info`.
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
"""The fields that the client acts on."""


def read_info(text: bytes) -> dict[str, Any]:
    """Return the fields of an INFO."""
    try:
        info = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the server's INFO is not valid JSON: {error}") from None
    if not isinstance(info, dict):
        raise ProtocolError("the server's INFO is not a JSON object")
    for name, kind in TYPES.items():
        value = info.get(name)
        # `null` counts as missing: nats-server writes it for an empty list of URLs.
        if value is None:
            info.pop(name, None)
        elif type(value) is not kind:
            raise ProtocolError(f"the server's INFO is wrong: `{name}` is {_shown(value)}")
    _check_nonce(info.get("nonce", ""))
    return info


def _check_nonce(nonce: str) -> None:
    """Refuse a nonce with a lone surrogate: it is valid JSON, but not text that can be signed."""
    try:
        nonce.encode()
    except UnicodeEncodeError:
        raise ProtocolError("the server's INFO is wrong: `nonce` is not valid text") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
