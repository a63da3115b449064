"""
`STREAM.RESTORE`: a stream comes back from an archive, in chunks that are acked one by one.

The stream exists from the first entry on, but takes messages only once the archive has ended. A
stream that could not be restored is deleted again, and so is one whose chunks stop coming.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.core.reports.clientinfo import client_info
from penstock.core.runs import payloads
from penstock.errors import JetStreamError
from penstock.hot.wire import HEADER_BYTES, REPLY
from penstock.jetstream.api import streaminfo
from penstock.jetstream.api.api import encode_answer
from penstock.jetstream.config.consumer import CONSUMER_CONFIG_FIELDS, ConsumerConfig
from penstock.jetstream.config.stream import is_valid_name
from penstock.jetstream.consumers import consumers
from penstock.jetstream.consumers.consumerrecords import ConsumerState
from penstock.jetstream.snapshots import archive
from penstock.jetstream.snapshots.archive import ArchiveEntry, ArchiveReader
from penstock.protocol import errorcodes, headers, subjects
from penstock.protocol.headers import NUMBER_MAX
from penstock.protocol.rfc3339 import format_time
from penstock.protocol.strictjson import SUBJECT_CHARACTERS_MAX

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.hot.wire import Op
    from penstock.jetstream.api.api import ApiRequest
    from penstock.jetstream.config.stream import StreamConfig
    from penstock.jetstream.stream import Stream
    from penstock.jetstream.timers import Timer

log = logging.getLogger("penstock")

ENTRIES_MAX = 500
"""The number of entries to take in one go, before others have their turn."""
UNSTORED_BYTES_MAX = 1024 * 1024
"""Messages are stored, and the limits checked, after each of this number of bytes."""
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Chunks may arrive faster than they are processed, but not by more than this."""
STALL_NS = 5_000_000_000
"""How long to wait for the next chunk."""
ANSWER = "stream_create"


class Restore:
    """One stream that is being restored."""

    def __init__(self, request: ApiRequest, config: StreamConfig) -> None:
        self._request = request
        self._engine = request.engine
        self._context = request.engine.context
        self._config = config
        self._reader = ArchiveReader()
        self._stream: Stream | None = None
        self._last_sequence = 0
        self._consumers: list[tuple[ConsumerConfig, ConsumerState]] = []
        self._failure: dict[str, Any] | None = None
        """The error of a consumer that could not be stored."""
        self._received_bytes = 0
        self._chunks: deque[tuple[bytes, bytes]] = deque()
        """Chunks not processed yet, with their reply subjects."""
        self._unread: Iterator[ArchiveEntry] | None = None
        """The rest of the first chunk."""
        self._is_taking = self._is_making = self._is_closed = False
        self._entries: list[tuple[bytes, bytes, bytes, int]] = []
        self._unstored_bytes = 0
        """Messages that are not in the store yet, and their bytes."""
        self._began_ns = self._context.clock_ns()
        self.deliver_subject = f"$JS.SNAPSHOT.RESTORE.{config.name}.{self._context.new_id()}"
        self._timer: Timer | None = None

    def start(self) -> None:
        """Announce the start, and listen for chunks."""
        self._advise("CREATE", client=self._client())
        account = self._context.account
        self._subscription = account.listen(self.deliver_subject.encode(), self._on_chunks)
        self._wait()

    def _on_chunks(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            reply, header_bytes = publish[REPLY], publish[HEADER_BYTES]
            for payload in payloads(publish):
                self._chunks.append((payload[header_bytes:-2], reply))
        waiting_bytes = sum(len(chunk) for chunk, _ in self._chunks)
        if not self._is_closed and waiting_bytes > WAITING_BYTES_MAX:
            self._fail(b"", _failed("chunks come without waiting for their acks"))
        elif not self._is_taking:
            self._take_chunks()

    def _take_chunks(self) -> None:
        """Process chunks for a while; then others have their turn before it continues."""
        self._is_taking = True
        left = ENTRIES_MAX
        while self._chunks and left and not self._is_closed:
            chunk, reply = self._chunks[0]
            left = self._take_chunk(chunk, reply, left)
            if left and not self._is_closed:
                self._chunks.popleft()
        self._is_taking = bool(self._chunks) and not self._is_closed
        if self._is_taking and not self._is_making:
            context = self._context
            context.timers.at(context.clock_ns(), lambda now_ns: self._take_chunks())

    def _take_chunk(self, chunk: bytes, reply: bytes, left: int) -> int:
        """Process at most `left` entries of a chunk; return how many are left, 0 if unfinished."""
        try:
            if not reply:
                raise ValueError("each chunk needs a reply subject")
            if self._stream is not None and self._stream.is_closed:
                raise ValueError("the stream was deleted")
            if not chunk:
                self._finish(reply)
                return left
            if self._unread is None:
                self._received_bytes += len(chunk)
                self._unread = self._reader.feed(chunk)
            for entry in self._unread:
                self._take(entry)
                left -= 1
                if not left or self._is_making:
                    self._store()
                    return 0
            self._unread = None
            self._store()
        except JetStreamError as error:
            self._fail(reply, error)
            return left
        except Exception as error:
            # A client's bad archive may only fail its own restore.
            text = str(error) if isinstance(error, ValueError) else "the snapshot is damaged"
            self._fail(reply, _failed(text))
            return left
        self._context.account.send(reply, b"")
        self._wait()
        return left

    # Entries.

    def _take(self, entry: ArchiveEntry) -> None:
        if self._stream is None:
            if entry.name != archive.STATE:
                raise ValueError("expected state.json first")
            state = _document(entry.payload)
            self._last_sequence = _number(state["last_seq"])
            first = _number(state["first_seq"])
            self._make(first)
        elif not entry.sequence:
            self._take_consumer(entry)
        else:
            self._take_message(self._stream, entry)

    def _make(self, first_sequence: int) -> None:
        """Make the stream; its messages wait for that."""

        def made(stream: Stream | None, error: JetStreamError | None) -> None:
            self._is_making = False
            self._stream = stream
            if self._is_closed and stream is not None:
                self._engine.delete_stream(stream, lambda: None)
            elif error is not None and self._chunks:
                self._fail(self._chunks[0][1], error)
            elif stream is not None:
                if first_sequence > 1:
                    stream.store.purge(b">", before=first_sequence)
                if is_late:
                    self._take_chunks()

        is_late = False
        self._is_making = True
        self._engine.begin_restore(self._config, made)
        is_late = True

    def _take_consumer(self, entry: ArchiveEntry) -> None:
        if not entry.name.startswith(archive.CONSUMERS):
            raise ValueError(f"expected consumer, found {entry.name.decode(errors='replace')!r}")
        document = _document(entry.payload)
        known = {
            key: document["config"][key]
            for key in CONSUMER_CONFIG_FIELDS & document["config"].keys()
        }
        name = entry.name.removeprefix(archive.CONSUMERS).decode()
        if not is_valid_name(name):
            raise ValueError(f"the snapshot is damaged: {name!r:.50} is no name of a consumer")
        config = ConsumerConfig.from_json({**known, "name": name})
        self._consumers.append((config, _consumer_state(document["state"])))

    def _take_message(self, stream: Stream, entry: ArchiveEntry) -> None:
        expected = stream.store.last_sequence + len(self._entries) + 1
        if not expected <= entry.sequence <= NUMBER_MAX:
            raise ValueError(f"message sequence {entry.sequence} out of order")
        _check_message(entry)
        self._unstored_bytes += len(entry.name) + len(entry.header) + len(entry.payload)
        if self._unstored_bytes > UNSTORED_BYTES_MAX:
            self._store()
            expected = stream.store.last_sequence + 1
        if entry.sequence > expected:
            self._store()
            stream.store.skip(entry.sequence - expected)
        self._entries.append((entry.name, entry.header, entry.payload, entry.time_ns))

    def _store(self) -> None:
        if self._stream is not None and self._entries:
            self._context.quota.check_restored(self._config.storage, self._unstored_bytes)
            self._stream.store.append(self._entries)
            self._entries, self._unstored_bytes = [], 0
            self._context.touch(self._stream)

    # The end.

    def _finish(self, reply: bytes) -> None:
        stream = self._stream
        if stream is None or not self._reader.is_complete:
            raise ValueError("backup was truncated")
        missing = self._last_sequence - stream.store.last_sequence
        if missing > 0:
            stream.store.skip(missing)
        stream.store.enforce(self._context.clock_ns())
        for config, state in self._consumers:
            consumers.restore(stream, config, state, answer=self._on_consumer)
        self._close()
        self._engine.end_restore(stream, lambda _, error: self._end(reply, stream, error))

    def _on_consumer(self, answer: dict[str, Any]) -> None:
        """Note the outcome of a consumer."""
        self._failure = self._failure or answer.get("error")

    def _end(self, reply: bytes, stream: Stream, error: JetStreamError | None) -> None:
        if error is None and self._failure is not None:
            error = _failed(str(self._failure.get("description")))
        if error is not None:
            self._fail(reply, error)
            return
        self._complete()
        self._context.account.send(reply, encode_answer(ANSWER, streaminfo.describe(stream)))

    def _fail(self, reply: bytes, error: JetStreamError) -> None:
        """Give up, and report why."""
        self._abandon(str(error))
        self._complete()
        if reply:
            document = encode_answer(ANSWER, {"error": error.document})
            self._context.account.send(reply, document)

    def _abandon(self, reason: str) -> None:
        name = self._config.name
        log.warning(
            "Restore of stream '%s > %s' failed: %s", self._context.account.name, name, reason
        )
        self._close()
        if self._stream is not None and self._engine.streams.get(name) is self._stream:
            self._engine.delete_stream(self._stream, lambda: None)

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._chunks.clear()
        self._unread = None
        self._context.account.unlisten(self._subscription)
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline_ns = self._context.clock_ns() + STALL_NS
        self._timer = self._context.timers.at(
            deadline_ns, lambda now_ns: self._abandon("it stalled")
        )

    def _complete(self) -> None:
        self._advise(
            "COMPLETE",
            start=format_time(self._began_ns),
            end=format_time(self._context.clock_ns()),
            bytes=self._received_bytes,
            client=self._client(),
        )

    def _client(self) -> dict[str, Any] | None:
        publisher = self._request.publisher
        return client_info(publisher) if publisher else None

    def _advise(self, event: str, **fields: Any) -> None:
        name = self._config.name
        self._context.advisories.send(
            f"STREAM.RESTORE_{event}.{name}", f"restore_{event.lower()}", stream=name, **fields
        )


def _document(payload: bytes) -> dict[str, Any]:
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ValueError("the snapshot is damaged: an entry is no JSON that makes sense") from error
    if not isinstance(document, dict):
        raise ValueError("the snapshot is damaged: an entry is no JSON object")
    return document


def _check_message(entry: ArchiveEntry) -> None:
    """
    Raise ValueError for a message that nobody could have published.

    Subjects and headers go to clients as they are: clients, and not only those of this account,
    would read a line break in one as another message.
    """
    if not subjects.is_sendable(entry.name) or len(entry.name) > SUBJECT_CHARACTERS_MAX:
        raise ValueError(f"message {entry.sequence} has a subject that nobody can publish to")
    header = entry.header
    if header and not (header.startswith(b"NATS/1.0") and header.endswith(b"\r\n\r\n")):
        raise ValueError(f"message {entry.sequence} has headers that are none")


def _failed(text: str) -> JetStreamError:
    return JetStreamError(errorcodes.STREAM_RESTORE, err=text)


def _consumer_state(document: dict[str, Any]) -> ConsumerState:
    delivered, floor = document["delivered"], document["ack_floor"]
    return ConsumerState(
        _number(delivered["consumer_seq"]),
        _number(delivered["stream_seq"]),
        _number(floor["consumer_seq"]),
        _number(floor["stream_seq"]),
        {
            _sequence(sequence): (_number(each["Sequence"]), _number(each["Timestamp"]))
            for sequence, each in (document.get("pending") or {}).items()
        },
        {
            _sequence(sequence): _number(count)
            for sequence, count in (document.get("redelivered") or {}).items()
        },
    )


def _sequence(text: str) -> int:
    return _number(headers.number(text.encode(errors="replace")))


def _number(value: object) -> int:
    """Return a number of a snapshot; raise ValueError if it is too large for a store."""
    if type(value) is not int or not 0 <= value < NUMBER_MAX:
        raise ValueError(f"the snapshot is damaged: {value!r:.50} is no number that makes sense")
    return value
