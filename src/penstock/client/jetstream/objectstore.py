"""
Object stores on JetStream (ADR-20): files of any size, in chunks, under a name.

A bucket is a stream `OBJ_<bucket>`. The chunks of an object are on `$O.<bucket>.C.<id>`; its
description, with size and checksum, is the last message on `$O.<bucket>.M.<name in base64>`.
The format is that of every NATS client, so buckets can be shared.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Unpack

from penstock.client.inbox import unique_token
from penstock.client.jetstream.api import read_object
from penstock.client.jetstream.jetstream import JetStream
from penstock.client.jetstream.keyvalue import check_bucket
from penstock.client.jetstream.puback import PubAck
from penstock.client.jetstream.settings import StreamSettings
from penstock.errors import ClientError, JetStreamError
from penstock.protocol import errorcodes, wellknown
from penstock.protocol.times import timestamp

STREAM_PREFIX = "OBJ_"
CHUNK_BYTES = 128 * 1024
CHUNKS_UNDER_WAY = 32
DIGEST = "SHA-256="
NEVER = "0001-01-01T00:00:00Z"
ROLLUP = {"Nats-Rollup": "sub"}


class ObjectNotFound(ClientError):
    """The bucket has no object of that name."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """The description of an object."""

    bucket: str
    name: str
    size: int = 0
    chunks: int = 0
    digest: str = ""
    """The checksum, as `SHA-256=` and URL-safe base64."""
    nuid: str = ""
    """The id of its chunks."""
    modified: str = NEVER
    description: str = ""
    headers: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    deleted: bool = False

    @property
    def link(self) -> tuple[str, str] | None:
        """The bucket and the name of the object that this one stands for."""
        link = self.options.get("link")
        return (str(link["bucket"]), str(link.get("name", ""))) if link else None


class ObjectStore:
    """One bucket. Make one with `open` or `create`."""

    def __init__(self, js: JetStream, bucket: str) -> None:
        self.bucket = check_bucket(bucket)
        self.stream = f"{STREAM_PREFIX}{bucket}"
        self._js = js
        self._chunks = f"{wellknown.OBJECTS}{bucket}.C."
        self._metas = f"{wellknown.OBJECTS}{bucket}.M."

    @classmethod
    async def create(
        cls,
        js: JetStream,
        bucket: str,
        *,
        ttl: timedelta = timedelta(0),
        **config: Unpack[StreamSettings],
    ) -> ObjectStore:
        """Create a bucket; `config` has further settings of its stream. Idempotent."""
        store = cls(js, bucket)
        settings: StreamSettings = {
            "subjects": [f"{store._chunks}>", f"{store._metas}>"],
            "max_age": ttl,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            **config,
        }
        await js.streams.create(store.stream, **settings)
        return store

    @classmethod
    async def open(cls, js: JetStream, bucket: str) -> ObjectStore:
        """Open an existing bucket."""
        store = cls(js, bucket)
        await store.status()
        return store

    async def status(self) -> dict[str, Any]:
        """Return configuration and state of the bucket's stream."""
        return await self._js.streams.info(self.stream)

    async def destroy(self) -> None:
        """Delete the bucket and all its objects."""
        await self._js.streams.delete(self.stream)

    async def put(self, name: str, pieces: Iterable[bytes], *, description: str = "") -> ObjectInfo:
        """Store an object; it replaces one of that name once all of it is stored."""
        old = await self._find(name)
        info = ObjectInfo(
            bucket=self.bucket, name=name, nuid=unique_token(), description=description
        )
        try:
            info = await self._put_chunks(info, pieces)
            await self._describe(info)
        except BaseException:
            with suppress(Exception):
                await self._purge(info)
            raise
        if old is not None and old.nuid:
            await self._purge(old)
        return info

    async def get(self, name: str) -> AsyncGenerator[bytes, None]:
        """Iterate over the chunks of an object; raise at the end if they are not what was put."""
        store, info = self, await self.info(name)
        if info.link is not None:
            store = ObjectStore(self._js, info.link[0])
            info = await store.info(info.link[1])
        async for chunk in store._read(info):
            yield chunk

    async def info(self, name: str) -> ObjectInfo:
        """Return the description of an object."""
        info = await self._find(name)
        if info is None or info.deleted:
            raise ObjectNotFound(f"no object `{name}` in bucket `{self.bucket}`")
        return info

    async def list(self) -> list[ObjectInfo]:
        """Return the descriptions of all objects."""
        state = await self._js.streams.info(self.stream, subjects_filter=f"{self._metas}>")
        subjects = sorted(state["state"].get("subjects") or {})
        infos = [await self._last(subject) for subject in subjects]
        return [info for info in infos if info is not None and not info.deleted]

    async def delete(self, name: str) -> None:
        """Delete an object."""
        info = await self.info(name)
        gone = ObjectInfo(bucket=self.bucket, name=name, nuid=info.nuid, deleted=True)
        await self._describe(gone)
        await self._purge(info)

    async def watch(self, *, updates_only: bool = False) -> AsyncGenerator[ObjectInfo, None]:
        """Iterate over all descriptions, then over changes; `aclose` it."""
        policy = "new" if updates_only else "last_per_subject"
        config: dict[str, Any] = {"deliver_policy": policy, "filter_subject": f"{self._metas}>"}
        async with self._js.ordered_consumer(self.stream, **config) as consumer:
            async for message in consumer:
                yield self._described(message.payload, timestamp(message.metadata.timestamp_ns))

    async def seal(self) -> None:
        """Refuse any change from now on, for good."""
        config = (await self.status())["config"]
        await self._js.streams.update(**{**config, "sealed": True})

    async def _put_chunks(self, info: ObjectInfo, pieces: Iterable[bytes]) -> ObjectInfo:
        digest, size, count = hashlib.sha256(), 0, 0
        under_way: deque[asyncio.Future[PubAck]] = deque()
        for piece in pieces:
            for start in range(0, len(piece), CHUNK_BYTES):
                chunk = piece[start : start + CHUNK_BYTES]
                under_way.append(await self._js.publish_async(self._chunks + info.nuid, chunk))
                if len(under_way) > CHUNKS_UNDER_WAY:
                    await under_way.popleft()
                digest.update(chunk)
                size, count = size + len(chunk), count + 1
        for ack in under_way:
            await ack
        text = DIGEST + base64.urlsafe_b64encode(digest.digest()).decode()
        options = {"max_chunk_size": CHUNK_BYTES}
        return ObjectInfo(
            **{**vars(info), "size": size, "chunks": count, "digest": text, "options": options}
        )

    async def _read(self, info: ObjectInfo) -> AsyncIterator[bytes]:
        digest, size = hashlib.sha256(), 0
        if info.size:
            async with self._js.ordered_consumer(
                self.stream, filter_subject=self._chunks + info.nuid
            ) as consumer:
                async for message in consumer:
                    digest.update(message.payload)
                    size += len(message.payload)
                    yield message.payload
                    if size >= info.size or not message.metadata.pending:
                        break
        found = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
        expected = info.digest.removeprefix(DIGEST).rstrip("=")
        if size != info.size or (expected and expected != found):
            raise ClientError(
                f"object `{info.name}` is damaged: {size} of {info.size} bytes, checksum {found}"
            )

    async def _describe(self, info: ObjectInfo) -> None:
        document = {
            **({"description": info.description} if info.description else {}),
            "name": info.name,
            "bucket": info.bucket,
            "nuid": info.nuid,
            "size": info.size,
            "mtime": NEVER,
            "chunks": info.chunks,
            "digest": info.digest,
            **({"options": info.options} if info.options else {}),
            **({"deleted": True} if info.deleted else {}),
        }
        await self._js.publish(
            self._subject(info.name), json.dumps(document).encode(), headers=ROLLUP
        )

    async def _purge(self, info: ObjectInfo) -> None:
        await self._js.streams.purge(self.stream, filter=self._chunks + info.nuid)

    async def _find(self, name: str) -> ObjectInfo | None:
        if not name:
            raise ClientError("an object needs a name")
        return await self._last(self._subject(name))

    async def _last(self, subject: str) -> ObjectInfo | None:
        try:
            message = await self._js.streams.get(self.stream, last_by_subj=subject)
        except JetStreamError as error:
            if error.err_code != errorcodes.NO_MESSAGE_FOUND.err_code:
                raise
            return None
        return self._described(message.payload, message.time)

    def _described(self, payload: bytes, time: str) -> ObjectInfo:
        document = read_object(payload)
        names = ObjectInfo.__dataclass_fields__.keys() & document.keys()
        known = {name: document[name] for name in names if document[name] is not None}
        return ObjectInfo(**{**known, "bucket": self.bucket, "modified": time})

    def _subject(self, name: str) -> str:
        return self._metas + base64.urlsafe_b64encode(name.encode()).decode()
