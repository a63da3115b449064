"""JetStream's request/reply API: a JSON request, and a JSON answer or an error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, Protocol, TypeVar

from penstock.client.connection.connection import Connection
from penstock.client.messages import Message, Sender
from penstock.client.subscription import Subscription
from penstock.errors import ApiError, ClientError, JetStreamError, NoResponders

T = TypeVar("T")

FORBIDDEN_IN_NAMES = frozenset(" .*>/\\\t\r\n")
ENTRIES_MAX = 1 << 20
"""The maximum number of entries in a list, over all pages."""


class CoreClient(Sender, Protocol):
    """A client, as JetStream uses it: requests, inboxes and the connection."""

    connection: Connection

    @property
    def connected(self) -> bool:
        """Whether there is a connection to a server right now."""

    async def publish(self, subject: str, payload: bytes = b"", *, reply: str = "") -> None:
        """Publish a message."""

    async def request(
        self, subject: str, payload: bytes = b"", *, timeout_s: float | None = None
    ) -> Message:
        """Publish, and return the first reply."""

    async def subscribe(self, subject: str, *, queue: str = "") -> Subscription:
        """Subscribe to a subject."""

    async def make_room(self) -> None:
        """Let the loop turn, or wait until fewer bytes are unsent."""

    def encode_subject(self, subject: str) -> bytes:
        """Check and encode a subject."""

    def new_inbox(self) -> str:
        """Return a subject that nobody else uses."""


class Api:
    """API calls below one prefix."""

    def __init__(self, client: CoreClient, *, prefix: str, timeout_s: float) -> None:
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
                f"no answer to `{self.prefix}.{operation}`; hint: is JetStream enabled?"
            ) from None
        return decode(reply.payload)

    async def pages(
        self, operation: str, key: str, request: Mapping[str, Any] | None = None
    ) -> AsyncIterator[Any]:
        """Iterate over a list that the server sends page by page."""
        offset = 0
        while True:
            page = await self.call(operation, {**(request or {}), "offset": offset})
            # A server with nothing to list writes `null`.
            entries = [] if page.get(key) is None else field(page, key, list)
            for entry in entries:
                yield entry
            offset += len(entries)
            if not entries or offset >= field({"total": 0} | page, "total", int):
                return
            if offset > ENTRIES_MAX:
                raise ClientError(f"`{operation}` returned more than {ENTRIES_MAX} entries")


def check_name(name: str, what: str) -> str:
    """Return `name` if it is a valid stream or consumer name."""
    if not name or not FORBIDDEN_IN_NAMES.isdisjoint(name):
        raise ClientError(f"`{name}` is not a valid {what} name")
    return name


def encode(request: Mapping[str, Any]) -> bytes:
    """Encode JSON as JetStream expects it: durations in nanoseconds, times in RFC 3339."""
    return json.dumps(request, default=_encode_value).encode()


def _encode_value(value: object) -> object:
    if isinstance(value, timedelta):
        return (value.days * 86_400 + value.seconds) * 1_000_000_000 + value.microseconds * 1000
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    raise ClientError(f"{value!r} cannot be sent to JetStream")


def decode(payload: bytes) -> dict[str, Any]:
    """Decode an answer; raise the error it contains."""
    answer = read_object(payload)
    if "error" in answer:
        raise error_of(answer["error"])
    return answer


def read_object(payload: bytes) -> dict[str, Any]:
    """Decode a JSON object with suspicion: the answer may come from anybody."""
    try:
        answer = json.loads(payload, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ClientError(f"an answer is not valid JSON: {error}") from None
    if not isinstance(answer, dict):
        raise ClientError(f"an answer is not a JSON object: {payload[:40]!r}")
    return answer


def field(answer: object, name: str, kind: type[T]) -> T:
    """Return a required field of an answer; raise if it is missing or has another type."""
    value = answer.get(name) if isinstance(answer, dict) else None
    # In Python a bool is an int; in JSON it is not.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ClientError(f"an answer is invalid: its `{name}` is {repr(value)[:40]}")
    return value


def error_of(error: object) -> JetStreamError:
    """Turn the error object of an answer into an exception, even if it is malformed."""
    fields = error if isinstance(error, dict) else {"description": repr(error)[:40]}
    code, err_code = fields.get("code"), fields.get("err_code")
    return JetStreamError(
        ApiError(
            code if isinstance(code, int) else 0,
            err_code if isinstance(err_code, int) else 0,
            str(fields.get("description", "")),
        )
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
