"""Streams as archives: out in chunks that we ask for by acks, and back in the same way."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from penstock.client.jetstream.api import Api, check_name, decode, field
from penstock.client.subscription import Subscription
from penstock.errors import ClientError

CHUNK_BYTES = 128 * 1024
DONE = (0, 204)
"""Status codes of the empty message behind the last chunk, if all is well."""
RESTORED_TIMEOUT_S = 3600.0
"""The server stores the last messages before it answers the last chunk."""


class Snapshot:
    """An archive on its way to us. Iterate over its chunks to the end."""

    def __init__(
        self, answer: Mapping[str, Any], replies: Subscription, *, timeout_s: float
    ) -> None:
        self.config: dict[str, Any] = field(answer, "config", dict)
        self.state: dict[str, Any] = field(answer, "state", dict)
        self._replies = replies
        self._timeout_s = timeout_s

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        message = await self._replies.next(timeout_s=self._timeout_s)
        if message.payload:
            if message.reply:
                await message.respond()
            return message.payload
        code, description = message.status
        if code in DONE:
            raise StopAsyncIteration
        raise ClientError(f"the server ended the snapshot: {description} ({code})")


@asynccontextmanager
async def open_snapshot(api: Api, stream: str, *, consumers: bool) -> AsyncIterator[Snapshot]:
    """Have the server send a snapshot."""
    client = api.client
    async with await client.subscribe(client.new_inbox()) as replies:
        request = {
            "deliver_subject": replies.subject,
            "no_consumers": not consumers,
            "chunk_size": CHUNK_BYTES,
        }
        answer = await api.call(f"STREAM.SNAPSHOT.{check_name(stream, 'stream')}", request)
        yield Snapshot(answer, replies, timeout_s=api.timeout_s)


async def restore(
    api: Api, config: Mapping[str, Any], state: Mapping[str, Any], chunks: AsyncIterable[bytes]
) -> dict[str, Any]:
    """Create a stream from the chunks of a snapshot, and return its info."""
    name = check_name(str(config["name"]), "stream")
    answer = await api.call(f"STREAM.RESTORE.{name}", {"config": config, "state": state})
    target = field(answer, "deliver_subject", str)
    async for chunk in chunks:
        reply = await api.client.request(target, chunk, timeout_s=api.timeout_s)
        if reply.payload:
            decode(reply.payload)
    reply = await api.client.request(target, b"", timeout_s=RESTORED_TIMEOUT_S)
    return decode(reply.payload)
