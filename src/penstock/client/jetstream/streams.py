"""Managing streams, and reading single messages out of them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Unpack

from penstock.client.jetstream.api import Api, check_name, encode, field
from penstock.client.jetstream.settings import StreamSettings
from penstock.client.jetstream.snapshots import Snapshot, open_snapshot, restore
from penstock.client.messages import Message, read_number
from penstock.errors import ApiError, ClientError, JetStreamError
from penstock.protocol import headers as header_block

END_OF_BATCH = 204

DIRECT_HEADERS = frozenset(
    (
        "Nats-Stream",
        "Nats-Subject",
        "Nats-Sequence",
        "Nats-Time-Stamp",
        "Nats-Num-Pending",
        "Nats-Last-Sequence",
    )
)
"""Headers that a direct get adds: they locate the message, and are not part of it."""


@dataclass(frozen=True, kw_only=True)
class StoredMessage:
    """A message as stored in a stream."""

    stream: str
    subject: str
    sequence: int
    time: str
    payload: bytes
    header_pairs: list[tuple[str, str]]

    @property
    def headers(self) -> dict[str, str]:
        """Headers by name; for a repeated header, the first value."""
        return dict(reversed(self.header_pairs))


class Streams:
    """The `STREAM.*` and `DIRECT.*` APIs. Settings have the names of the NATS documentation."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def create(self, name: str, **config: Unpack[StreamSettings]) -> dict[str, Any]:
        """Create a stream. Repeating it with the same configuration is not an error."""
        return await self._call("CREATE", name, {"name": name, **config})

    async def update(self, name: str, **config: Unpack[StreamSettings]) -> dict[str, Any]:
        """Update a stream. Settings left out return to their defaults."""
        return await self._call("UPDATE", name, {"name": name, **config})

    async def info(self, name: str, **request: Any) -> dict[str, Any]:
        """Return configuration and state; `subjects_filter` adds a count by subject."""
        return await self._call("INFO", name, request)

    async def delete(self, name: str) -> None:
        """Delete a stream and all its messages."""
        await self._call("DELETE", name, {})

    async def purge(self, name: str, **request: Any) -> int:
        """
        Delete messages by `filter`, up to `seq`, or all but `keep`; return the number
        deleted.
        """
        answer = await self._call("PURGE", name, request)
        return field(answer, "purged", int)

    async def names(self, *, subject: str = "") -> list[str]:
        """Return the names of all streams, or of those that store `subject`."""
        request = {"subject": subject} if subject else {}
        return [name async for name in self._api.pages("STREAM.NAMES", "streams", request)]

    async def list(self, *, subject: str = "") -> list[dict[str, Any]]:
        """Return the info of all streams, or of those that store `subject`."""
        request = {"subject": subject} if subject else {}
        return [info async for info in self._api.pages("STREAM.LIST", "streams", request)]

    async def get(self, name: str, **request: Any) -> StoredMessage:
        """Read one message: by `seq`, `last_by_subj`, or `next_by_subj` from `seq` on."""
        answer = field(await self._call("MSG.GET", name, request), "message", dict)
        return StoredMessage(
            stream=name,
            subject=field(answer, "subject", str),
            sequence=field(answer, "seq", int),
            time=field(answer, "time", str),
            payload=_decoded(answer, "data"),
            header_pairs=header_block.decode(_decoded(answer, "hdrs")),
        )

    async def delete_message(self, name: str, sequence: int, *, erase: bool = True) -> None:
        """Delete one message; `erase` overwrites its bytes first."""
        await self._call("MSG.DELETE", name, {"seq": sequence, "no_erase": not erase})

    async def get_direct(self, name: str, **request: Any) -> StoredMessage:
        """Read one message from any replica, by the same fields as `get`."""
        check_name(name, "stream")
        reply = await self._api.client.request(
            f"{self._api.prefix}.DIRECT.GET.{name}",
            encode(request),
            timeout_s=self._api.timeout_s,
        )
        _check_status(reply)
        return _stored(reply)

    async def get_batch(
        self, name: str, *, batch: int, **request: Any
    ) -> AsyncIterator[StoredMessage]:
        """Read up to `batch` messages with one request: from `seq` on, or of `multi_last`."""
        check_name(name, "stream")
        client = self._api.client
        async with await client.subscribe(client.new_inbox()) as replies:
            await client.publish(
                f"{self._api.prefix}.DIRECT.GET.{name}",
                encode({"batch": batch, **request}),
                reply=replies.subject,
            )
            for _ in range(batch + 1):
                reply = await replies.next(timeout_s=self._api.timeout_s)
                if reply.status[0] == END_OF_BATCH:
                    return
                _check_status(reply)
                yield _stored(reply)
            raise ClientError(
                f"stream `{name}` answered with more than the {batch} messages requested"
            )

    def snapshot(
        self, name: str, *, consumers: bool = True
    ) -> AbstractAsyncContextManager[Snapshot]:
        """Read a stream as an archive: its chunks, in the format of nats-server."""
        return open_snapshot(self._api, name, consumers=consumers)

    async def restore(
        self, config: Mapping[str, Any], state: Mapping[str, Any], chunks: AsyncIterable[bytes]
    ) -> dict[str, Any]:
        """Create a stream from an archive, and from what its snapshot said."""
        return await restore(self._api, config, state, chunks)

    async def _call(self, operation: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
        return await self._api.call(f"STREAM.{operation}.{check_name(name, 'stream')}", request)


def _check_status(reply: Message) -> None:
    code, description = reply.status
    if code:
        raise JetStreamError(ApiError(code, 0, description))


def _decoded(answer: dict[str, Any], name: str) -> bytes:
    """Decode a base64 field of an answer; a missing field is empty."""
    try:
        return base64.b64decode(field({name: ""} | answer, name, str))
    except (binascii.Error, ValueError) as error:
        raise ClientError(f"an answer is invalid: its `{name}` is not base64: {error}") from None


def _stored(reply: Message) -> StoredMessage:
    pairs = reply.header_pairs
    try:
        # The server's own headers come after those stored with the message.
        own = dict(pairs)
        return StoredMessage(
            stream=own["Nats-Stream"],
            subject=own["Nats-Subject"],
            sequence=read_number(own["Nats-Sequence"]),
            time=own["Nats-Time-Stamp"],
            payload=reply.payload,
            header_pairs=[pair for pair in pairs if pair[0] not in DIRECT_HEADERS],
        )
    except KeyError as error:
        raise ClientError(f"a direct get was answered without {error}") from None
