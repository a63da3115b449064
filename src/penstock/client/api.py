"""JetStream's request/reply API: JSON out, JSON or an error back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.errors import ApiError, ClientError, JetStreamError, NoResponders

if TYPE_CHECKING:
    from penstock.client.client import Client

FORBIDDEN_IN_NAMES = frozenset(" .*>/\\\t\r\n")


class Api:
    """Calls below one API prefix."""

    def __init__(self, client: Client, *, prefix: str, timeout_s: float) -> None:
        self.client = client
        self.prefix = prefix
        self.timeout_s = timeout_s

    async def call(
        self, operation: str, request: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the parsed answer of `<prefix>.<operation>`."""
        body = encode(request) if request else b""
        try:
            reply = await self.client.request(
                f"{self.prefix}.{operation}", body, timeout_s=self.timeout_s
            )
        except NoResponders:
            raise NoResponders(
                f"nobody answers `{self.prefix}.{operation}`; hint: is JetStream enabled?"
            ) from None
        return decode(reply.payload)

    async def pages(
        self, operation: str, key: str, request: Mapping[str, Any] | None = None
    ) -> AsyncIterator[Any]:
        """Iterate over a list that the server gives page by page."""
        offset = 0
        while True:
            page = await self.call(operation, {**(request or {}), "offset": offset})
            entries = page.get(key) or []
            for entry in entries:
                yield entry
            offset += len(entries)
            if not entries or offset >= page.get("total", 0):
                return


def check_name(name: str, what: str) -> str:
    """Return `name` if it can be a stream's or consumer's name."""
    if not name or not FORBIDDEN_IN_NAMES.isdisjoint(name):
        raise ClientError(f"`{name}` is no name for a {what}")
    return name


def encode(request: Mapping[str, Any]) -> bytes:
    """Write JSON as JetStream reads it: durations in nanoseconds, times in RFC 3339."""
    return json.dumps(request, default=_encode_value).encode()


def _encode_value(value: object) -> object:
    if isinstance(value, timedelta):
        return (value.days * 86_400 + value.seconds) * 1_000_000_000 + value.microseconds * 1000
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    raise ClientError(f"{value!r} cannot be sent to JetStream")


def decode(payload: bytes) -> dict[str, Any]:
    """Read an answer; raise the error it carries."""
    answer: dict[str, Any] = json.loads(payload)
    if "error" in answer:
        raise error_of(answer["error"])
    return answer


def error_of(error: Mapping[str, Any]) -> JetStreamError:
    """Turn the error object of an answer into an exception."""
    return JetStreamError(
        ApiError(error.get("code", 0), error.get("err_code", 0), error.get("description", ""))
    )
