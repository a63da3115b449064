"""
The HTTP request that starts a WebSocket, and the answer to it. Without I/O.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from penstock.config.transport import WebSocketConfig, origin_of
from penstock.net.listeners.addresses import read_ip, readable

HEAD_BYTES_MAX = 16 * 1024
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Control characters, which no header has: they could forge lines in the log."""
DEFLATE = "permessage-deflate"


@dataclass(frozen=True)
class Agreement:
    """The result of an upgrade."""

    answer: bytes
    compresses: bool
    is_masked: bool
    forwarded_for: str = ""
    """The client's address according to an HTTP proxy."""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """The credentials in cookies, as CONNECT fields."""


class UpgradeRefusal(Exception):
    """The refusal of a request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        body = f"{reason}\n".encode()
        lines = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "Sec-Websocket-Version: 13",
            "Content-Type: text/plain; charset=utf-8",
            "X-Content-Type-Options: nosniff",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        self.answer = "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def agree(head: bytes, config: WebSocketConfig) -> Agreement:
    """Return the answer to the head of a request; raise Refusal if it is not a valid upgrade."""
    request_line, *lines = head.decode("latin-1").split("\r\n")
    headers = _headers(lines)
    if not request_line.startswith("GET "):
        raise UpgradeRefusal(405, "request method must be GET")
    if not headers.get("host"):
        raise UpgradeRefusal(400, "'Host' missing in request")
    for name, word in (("Upgrade", "websocket"), ("Connection", "upgrade")):
        if not _contains(headers, name.lower(), word):
            raise UpgradeRefusal(400, f"invalid value for header '{name}'")
    key = _key(headers)
    if not _contains(headers, "sec-websocket-version", "13"):
        raise UpgradeRefusal(400, "invalid version")
    _check_origin(headers, config)
    compresses = config.compression and _offers_deflate(headers)
    is_masked = headers.get("nats-no-masking") != "true"
    return Agreement(
        _answer(key, config, compresses=compresses, is_masked=is_masked),
        compresses,
        is_masked,
        _forwarded_for(headers),
        _credentials(headers, config),
    )


def _headers(lines: list[str]) -> dict[str, str]:
    """Return the headers by their names in lower case; repeated ones are joined as a list."""
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if (line and not colon) or CONTROL.search(line):
            raise UpgradeRefusal(400, "malformed header")
        name = name.lower()
        value = value.strip()
        separator = "; " if name == "cookie" else ", "
        headers[name] = f"{headers[name]}{separator}{value}" if name in headers else value
    return headers


def _contains(headers: Mapping[str, str], name: str, word: str) -> bool:
    return word in [each.strip().lower() for each in headers.get(name, "").split(",")]


def _key(headers: Mapping[str, str]) -> str:
    key = headers.get("sec-websocket-key", "")
    if not key:
        raise UpgradeRefusal(400, "key missing")
    try:
        decoded = base64.b64decode(key, validate=True)
    except ValueError:
        decoded = b""
    if len(decoded) != 16:
        raise UpgradeRefusal(400, "invalid websocket key")
    return key


def _check_origin(headers: Mapping[str, str], config: WebSocketConfig) -> None:
    """Refuse web pages of other origins. Programs send no origin, or could send any."""
    given = headers.get("origin") or headers.get("sec-websocket-origin")
    if not given or not (config.same_origin or config.allowed_origins):
        return
    origin = origin_of(given)
    if origin is None:
        raise UpgradeRefusal(403, "origin not allowed: it makes no sense")
    scheme = "https" if config.tls is not None else "http"
    if config.same_origin and origin != origin_of(f"{scheme}://{headers['host']}"):
        raise UpgradeRefusal(403, "origin not allowed: not same origin")
    if config.allowed_origins and origin not in map(origin_of, config.allowed_origins):
        raise UpgradeRefusal(403, "origin not allowed: not in the allowed list")


def _offers_deflate(headers: Mapping[str, str]) -> bool:
    offers = headers.get("sec-websocket-extensions", "").replace(";", ",").split(",")
    return DEFLATE in [offer.strip().lower() for offer in offers]


def _forwarded_for(headers: Mapping[str, str]) -> str:
    address = headers.get("x-forwarded-for", "")
    try:
        return readable(read_ip(address))
    except ValueError:
        return ""


def _credentials(headers: Mapping[str, str], config: WebSocketConfig) -> dict[str, str]:
    cookies = {}
    for cookie in headers.get("cookie", "").split(";"):
        name, _, value = cookie.strip().partition("=")
        cookies[name] = value.strip('"')
    wanted = {
        "jwt": config.jwt_cookie,
        "user": config.user_cookie,
        "pass": config.pass_cookie,
        "auth_token": config.token_cookie,
    }
    return {field: cookies[name] for field, name in wanted.items() if name and name in cookies}


def _answer(key: str, config: WebSocketConfig, *, compresses: bool, is_masked: bool) -> bytes:
    accept = base64.b64encode(hashlib.sha1(key.encode() + GUID).digest()).decode()
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept}",
    ]
    if compresses:
        lines.append(
            f"Sec-WebSocket-Extensions: {DEFLATE}; server_no_context_takeover; "
            "client_no_context_takeover"
        )
    if not is_masked:
        lines.append("Nats-No-Masking: true")
    lines += [f"{name}: {value}" for name, value in config.headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"
