"""
Key-value buckets on JetStream (ADR-8).

A bucket is a stream `KV_<bucket>` on `$KV.<bucket>.>`: a key is a subject, a value is its
last message, and the sequence of that message is the value's revision. Deleting stores a
marker. The format is that of every NATS client, so buckets can be shared.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, Unpack

from penstock.client.jetstream.api import ENTRIES_MAX, field
from penstock.client.jetstream.jetstream import Expect, JetStream
from penstock.client.jetstream.settings import DeliverPolicy, StreamSettings
from penstock.client.jetstream.streams import StoredMessage
from penstock.client.messages import Message
from penstock.errors import ClientError, ConnectionLost, JetStreamError
from penstock.protocol import errorcodes, wellknown
from penstock.protocol.times import timestamp

Operation: TypeAlias = Literal["PUT", "DEL", "PURGE"]

BUCKET = re.compile(r"[a-zA-Z0-9_-]+")
KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")
PATTERN = re.compile(r"[-/_=.a-zA-Z0-9*>]+")
STREAM_PREFIX = "KV_"
HISTORY_MAX = 64
DUPLICATE_WINDOW = timedelta(minutes=2)
READ_BATCH = 500
READER_THRESHOLD = timedelta(seconds=30)
"""How long the server keeps the consumer of a dead reader."""

OPERATION = "KV-Operation"
MARKERS: Mapping[str, Operation] = {"MaxAge": "PURGE", "Purge": "PURGE", "Remove": "DEL"}
"""By reason: the operation that a marker written by the server stands for (ADR-48)."""

WRONG_LAST_SEQUENCES = (
    errorcodes.STREAM_WRONG_LAST_SEQUENCE.err_code,
    errorcodes.STREAM_WRONG_LAST_SEQUENCE_CONSTANT.err_code,
)


class KeyNotFound(ClientError):
    """The key has no value, or not at that revision."""


class WrongRevision(ClientError):
    """The key has changed in the meantime, or exists although it should not."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A key at one revision."""

    bucket: str
    key: str
    value: bytes
    revision: int
    time: str
    operation: Operation = "PUT"
    pending: int = 0
    """The number of entries a watch or a history still had to deliver after this one."""


class KeyValue:
    """One bucket. Make one with `open` or `create`."""

    def __init__(self, js: JetStream, bucket: str, *, is_direct: bool) -> None:
        self.bucket = check_bucket(bucket)
        self.stream = f"{STREAM_PREFIX}{bucket}"
        self._js = js
        self._is_direct = is_direct
        self._prefix = f"{wellknown.KEY_VALUE}{bucket}."

    @classmethod
    async def create(
        cls,
        js: JetStream,
        bucket: str,
        *,
        history: int = 1,
        ttl: timedelta = timedelta(0),
        **config: Unpack[StreamSettings],
    ) -> KeyValue:
        """Create a bucket; `config` has further settings of its stream. Idempotent."""
        if not 1 <= history <= HISTORY_MAX:
            raise ClientError(f"`history` must be between 1 and {HISTORY_MAX} revisions: {history}")
        settings: StreamSettings = {
            "subjects": [f"{wellknown.KEY_VALUE}{check_bucket(bucket)}.>"],
            "max_msgs_per_subject": history,
            "max_age": ttl,
            "duplicate_window": min(ttl, DUPLICATE_WINDOW) if ttl else DUPLICATE_WINDOW,
            "discard": "new",
            "allow_direct": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            **config,
        }
        await js.streams.create(f"{STREAM_PREFIX}{bucket}", **settings)
        return cls(js, bucket, is_direct=settings["allow_direct"])

    @classmethod
    async def open(cls, js: JetStream, bucket: str) -> KeyValue:
        """Open an existing bucket."""
        info = await js.streams.info(f"{STREAM_PREFIX}{check_bucket(bucket)}")
        config = field(info, "config", dict)
        return cls(js, bucket, is_direct=bool(config.get("allow_direct", False)))

    async def info(self) -> dict[str, Any]:
        """Return configuration and state of the bucket's stream."""
        return await self._js.streams.info(self.stream)

    async def destroy(self) -> None:
        """Delete the bucket and all its keys."""
        await self._js.streams.delete(self.stream)

    async def get(self, key: str, *, revision: int = 0) -> Entry:
        """Return the value of a key: the latest, or the one at a revision."""
        entry = await self._read(key, revision)
        if entry.operation != "PUT":
            raise KeyNotFound(f"key `{key}` was deleted at revision {entry.revision}")
        return entry

    async def put(self, key: str, value: bytes) -> int:
        """Set a key; return the revision."""
        return (await self._js.publish(self._subject(key), value)).sequence

    async def create_key(self, key: str, value: bytes) -> int:
        """Set a key without a value; raise `WrongRevision` if it has one."""
        try:
            return await self.update(key, value, revision=0)
        except WrongRevision:
            last = await self._read(key, 0)
            if last.operation == "PUT":
                raise WrongRevision(
                    f"key `{key}` already exists, at revision {last.revision}"
                ) from None
        return await self.update(key, value, revision=last.revision)

    async def update(self, key: str, value: bytes, *, revision: int) -> int:
        """Set a key if it is still at `revision`; otherwise raise `WrongRevision`."""
        return await self._publish(key, value, {}, revision)

    async def delete(self, key: str, *, revision: int | None = None) -> int:
        """Delete a key, but keep its history. With `revision`, only if the key is still there."""
        return await self._publish(key, b"", {OPERATION: "DEL"}, revision)

    async def purge(self, key: str, *, revision: int | None = None) -> int:
        """Delete a key and its history."""
        headers = {OPERATION: "PURGE", "Nats-Rollup": "sub"}
        return await self._publish(key, b"", headers, revision)

    async def keys(self, *patterns: str) -> list[str]:
        """Return the keys that have a value; with patterns, only those that match one."""
        entries = self._entries(patterns, "last_per_subject", headers_only=True)
        return [entry.key async for entry in entries if entry.operation == "PUT"]

    async def history(self, *patterns: str) -> list[Entry]:
        """Return every stored revision, deletions included, of some keys or of all."""
        return [entry async for entry in self._entries(patterns, "all")]

    async def watch(
        self, *patterns: str, history: bool = False, updates_only: bool = False
    ) -> AsyncGenerator[Entry, None]:
        """Iterate over the current values, or the whole history, then over changes; `aclose` it."""
        policy = "all" if history else "new" if updates_only else "last_per_subject"
        config = {"deliver_policy": policy, **self._filters(patterns)}
        async with self._js.ordered_consumer(self.stream, **config) as consumer:
            async for message in consumer:
                yield self._delivered(message)

    async def _read(self, key: str, revision: int) -> Entry:
        subject = self._subject(key)
        request = {"seq": revision} if revision else {"last_by_subj": subject}
        streams = self._js.streams
        read = streams.get_direct if self._is_direct else streams.get
        try:
            message = await read(self.stream, **request)
        except JetStreamError as error:
            if not error.is_not_found:
                raise
            message = None
        # Revisions count for the whole bucket: this number may belong to another key.
        if message is None or message.subject != subject:
            at = f" at revision {revision}" if revision else ""
            raise KeyNotFound(f"no key `{key}` in bucket `{self.bucket}`{at}") from None
        return self._stored(message)

    async def _publish(
        self, key: str, value: bytes, headers: Mapping[str, str], revision: int | None
    ) -> int:
        expect = None if revision is None else Expect(last_subject_sequence=revision)
        try:
            ack = await self._js.publish(
                self._subject(key), value, headers=headers or None, expect=expect
            )
        except JetStreamError as error:
            if error.err_code not in WRONG_LAST_SEQUENCES:
                raise
            found = error.description.rpartition(": ")[2]
            raise WrongRevision(
                f"key `{key}` is at revision {found}, not {revision}"
                if found.isdigit()
                else f"key `{key}` is not at revision {revision}"
            ) from None
        return ack.sequence

    async def _entries(
        self, patterns: Sequence[str], policy: DeliverPolicy, *, headers_only: bool = False
    ) -> AsyncIterator[Entry]:
        """Iterate over the entries of this moment, and end."""
        info = await self._js.consumers.create(
            self.stream,
            deliver_policy=policy,
            ack_policy="none",
            mem_storage=True,
            inactive_threshold=READER_THRESHOLD,
            headers_only=headers_only,
            **self._filters(patterns),
        )
        name = field(info, "name", str)
        try:
            if pending := field(info, "num_pending", int):
                async for message in self._messages(name, pending):
                    yield self._delivered(message)
        finally:
            await self._js.consumers.delete(self.stream, name)

    async def _messages(self, consumer: str, pending: int) -> AsyncIterator[Message]:
        """Iterate up to the end of the bucket, which recedes only while somebody writes."""
        expected = 1
        async with self._js.pull_consumer(self.stream, consumer) as pull:
            while batch := await pull.fetch(READ_BATCH, no_wait=True):
                for message in batch:
                    metadata = message.metadata
                    if metadata.consumer_sequence != expected:
                        raise ConnectionLost(
                            f"bucket `{self.bucket}`: some of its messages did not arrive"
                        )
                    expected += 1
                    yield message
                if not metadata.pending:
                    return
                if expected > pending + ENTRIES_MAX:
                    raise ClientError(f"bucket `{self.bucket}` changes faster than it can be read")

    def _filters(self, patterns: Iterable[str]) -> dict[str, Any]:
        subjects = [self._prefix + check_pattern(pattern) for pattern in patterns]
        if len(subjects) > 1:
            return {"filter_subjects": subjects}
        return {"filter_subject": subjects[0] if subjects else f"{self._prefix}>"}

    def _subject(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _stored(self, message: StoredMessage) -> Entry:
        return Entry(
            bucket=self.bucket,
            key=message.subject.removeprefix(self._prefix),
            value=message.payload,
            revision=message.sequence,
            time=message.time,
            operation=_operation(message.headers),
        )

    def _delivered(self, message: Message) -> Entry:
        metadata = message.metadata
        return Entry(
            bucket=self.bucket,
            key=message.subject.removeprefix(self._prefix),
            value=message.payload,
            revision=metadata.stream_sequence,
            time=timestamp(metadata.timestamp_ns),
            operation=_operation(message.headers),
            pending=metadata.pending,
        )


def check_bucket(name: str) -> str:
    """Return `name` if it is a valid bucket name."""
    if not BUCKET.fullmatch(name):
        raise ClientError(f"`{name}` is not a valid bucket name; hint: letters, digits, - and _")
    return name


def check_key(key: str) -> str:
    """Return `key` if it is a valid key."""
    if not KEY.fullmatch(key) or "" in key.split("."):
        raise ClientError(
            f"`{key}` is not a valid key; hint: letters, digits and -/_=. between them"
        )
    return key


def check_pattern(pattern: str) -> str:
    """Return `pattern` if it is a key, or a pattern with `*` and `>` as in subjects."""
    if not PATTERN.fullmatch(pattern) or "" in pattern.split("."):
        raise ClientError(f"`{pattern}` is not a valid pattern of keys; hint: orders.* or orders.>")
    return pattern


def _operation(headers: Mapping[str, str]) -> Operation:
    match headers.get(OPERATION):
        case "DEL":
            return "DEL"
        case "PURGE":
            return "PURGE"
    return MARKERS.get(headers.get("Nats-Marker-Reason", ""), "PUT")
