"""Messages and payloads, for people and for scripts."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Any

from penstock.cli.values import show_size
from penstock.errors import ConfigError
from penstock.protocol.tables import printable


def read_payload(text: str | None) -> bytes:
    """Return the payload of an argument; `-` or no argument reads standard input."""
    if text is not None and text != "-":
        # The system escapes bytes that are not UTF-8 like this; undo it.
        return text.encode(errors="surrogateescape")
    if text is None and sys.stdin.isatty():
        raise ConfigError("no payload; hint: give one as the last argument, or pipe it in")
    return sys.stdin.buffer.read()


def write_raw(payload: bytes) -> None:
    """Write a payload unchanged, and add a line end if it has none."""
    sys.stdout.flush()
    sys.stdout.buffer.write(payload if payload.endswith(b"\n") else payload + b"\n")
    sys.stdout.buffer.flush()


def payload_fields(payload: bytes) -> dict[str, Any]:
    """Return a payload for JSON: as text if it is UTF-8, otherwise as base64."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def payload_text(payload: bytes) -> str:
    """Return a payload that is safe to print on a terminal."""
    try:
        lines = payload.decode().splitlines()
    except UnicodeDecodeError:
        return f"({show_size(len(payload))} of binary data; --raw prints it)"
    return "\n".join(printable(line.replace("\t", "    ")) for line in lines)


def headers_text(pairs: Sequence[tuple[str, str]]) -> str:
    """Return headers as lines."""
    return "".join(f"{printable(name)}: {printable(value)}\n" for name, value in pairs)


def headers_field(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Return headers for JSON: each name with all its values."""
    headers: dict[str, list[str]] = {}
    for name, value in pairs:
        headers.setdefault(name, []).append(value)
    return headers


def message_text(title: str, pairs: Sequence[tuple[str, str]], payload: bytes) -> str:
    """Return a message as a title, its headers and its payload."""
    return f"{title}\n{headers_text(pairs)}{payload_text(payload)}".rstrip("\n")
