"""
`STREAM.RESTORE`: a stream comes back from an archive, in chunks that are acked one by one.

The stream is there from the first entry on, but takes no messages before the
archive has ended. One that could not be restored is deleted again, and so is one
whose chunks stop to come.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from penstock.core.account import new_message, payloads
from penstock.core.clientinfo import client_info
from penstock.errors import JetStreamError, StoreError
from penstock.jetstream import archive, consumers, errorcodes
from penstock.jetstream.api import encode_answer
from penstock.jetstream.archive import ArchiveEntry, ArchiveReader
from penstock.jetstream.consumerconfig import CONSUMER_CONFIG_FIELDS, ConsumerConfig
from penstock.jetstream.consumerrecords import ConsumerState
from penstock.jetstream.times import format_time

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.jetstream.api import Request
    from penstock.jetstream.model import StreamConfig
    from penstock.jetstream.stream import Stream
    from penstock.jetstream.timers import Timer
    from penstock.wire import Op

log = logging.getLogger("penstock")

STALL_NS = 5_000_000_000
"""How long the next chunk is waited for."""
ANSWER = "stream_create"


class Restore:
    """One stream on its way back."""

    def __init__(self, request: Request, config: StreamConfig) -> None:
        self._request = request
        self._engine = request.engine
        self._config = config
        self._reader = ArchiveReader()
        self._stream: Stream | None = None
        self._last_sequence = 0
        self._consumers: list[tuple[ConsumerConfig, ConsumerState]] = []
        self._received_bytes = 0
        self._began_ns = self._engine.clock_ns()
        self.deliver_subject = f"$JS.SNAPSHOT.RESTORE.{config.name}.{self._engine.new_id()}"
        self._timer: Timer | None = None

    def start(self) -> None:
        """Tell that it begins, and listen for chunks."""
        self._advise("CREATE", client=self._client())
        account = self._engine.account
        self._subscription = account.listen(self.deliver_subject.encode(), self._on_chunks)
        self._wait()

    def _on_chunks(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            reply, header_bytes = publish[2], publish[3]
            for payload in payloads(publish):
                if not self._on_chunk(payload[header_bytes:-2], reply):
                    return

    def _on_chunk(self, chunk: bytes, reply: bytes) -> bool:
        """Take a chunk and ack it, or the end and answer it; tell whether it goes on."""
        try:
            if not reply:
                raise ValueError("each chunk needs a reply subject")
            if not chunk:
                self._finish(reply)
                return False
            self._received_bytes += len(chunk)
            for entry in self._reader.feed(chunk):
                self._take(entry)
            self._store()
        except (ValueError, KeyError, TypeError, OSError, StoreError) as error:
            self._fail(reply, JetStreamError(errorcodes.STREAM_RESTORE, err=error))
            return False
        except JetStreamError as error:
            self._fail(reply, error)
            return False
        self._engine.account.send(reply, b"")
        self._wait()
        return True

    # Entries.

    def _take(self, entry: ArchiveEntry) -> None:
        if self._stream is None:
            if entry.name != archive.STATE:
                raise ValueError("expected state.json first")
            state = json.loads(entry.payload)
            self._last_sequence = int(state["last_seq"])
            self._stream = self._engine.begin_restore(self._config)
            first = int(state["first_seq"])
            if first > 1:
                self._stream.store.purge(b">", before=first)
            self._entries: list[tuple[bytes, bytes, bytes, int]] = []
        elif not entry.sequence:
            self._take_consumer(entry)
        else:
            self._take_message(self._stream, entry)

    def _take_consumer(self, entry: ArchiveEntry) -> None:
        if not entry.name.startswith(archive.CONSUMERS):
            raise ValueError(f"expected consumer, found {entry.name.decode(errors='replace')!r}")
        document = json.loads(entry.payload)
        known = {
            key: document["config"][key]
            for key in CONSUMER_CONFIG_FIELDS & document["config"].keys()
        }
        name = entry.name.removeprefix(archive.CONSUMERS).decode()
        config = ConsumerConfig.from_json({**known, "name": name})
        self._consumers.append((config, _consumer_state(document["state"])))

    def _take_message(self, stream: Stream, entry: ArchiveEntry) -> None:
        expected = stream.store.last_sequence + len(self._entries) + 1
        if entry.sequence < expected:
            raise ValueError(f"message sequence {entry.sequence} out of order")
        if entry.sequence > expected:
            self._store()
            stream.store.skip(entry.sequence - expected)
        self._entries.append((entry.name, entry.header, entry.payload, entry.time_ns))

    def _store(self) -> None:
        if self._stream is not None and self._entries:
            self._stream.store.append(self._entries)
            self._entries = []
            self._engine.touch(self._stream)

    # The end.

    def _finish(self, reply: bytes) -> None:
        stream = self._stream
        if stream is None or not self._reader.is_complete:
            raise ValueError("backup was truncated")
        missing = self._last_sequence - stream.store.last_sequence
        if missing > 0:
            stream.store.skip(missing)
        stream.store.enforce(self._engine.clock_ns())
        self._engine.end_restore(stream)
        for config, state in self._consumers:
            consumers.restore(stream, config, state)
        self._close()
        self._complete()
        document = encode_answer(ANSWER, stream.info())
        stream.owe([new_message(reply, document)])
        self._engine.touch(stream)

    def _fail(self, reply: bytes, error: JetStreamError) -> None:
        """Give up, and say why."""
        self._abandon(str(error))
        self._complete()
        if reply:
            document = encode_answer(ANSWER, {"error": error.document})
            self._engine.account.send(reply, document)

    def _abandon(self, reason: str) -> None:
        name = self._config.name
        log.warning(
            "Restore of stream '%s > %s' failed: %s", self._engine.account.name, name, reason
        )
        self._close()
        if self._stream is not None and self._engine.streams.get(name) is self._stream:
            self._engine.delete_stream(self._stream, lambda: None)

    def _close(self) -> None:
        self._engine.account.unlisten(self._subscription)
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline_ns = self._engine.clock_ns() + STALL_NS
        self._timer = self._engine.timers.at(
            deadline_ns, lambda now_ns: self._abandon("it stalled")
        )

    def _complete(self) -> None:
        self._advise(
            "COMPLETE",
            start=format_time(self._began_ns),
            end=format_time(self._engine.clock_ns()),
            bytes=self._received_bytes,
            client=self._client(),
        )

    def _client(self) -> dict[str, Any] | None:
        publisher = self._request.publisher
        return client_info(publisher) if publisher else None

    def _advise(self, event: str, **fields: Any) -> None:
        name = self._config.name
        self._engine.advisories.send(
            f"STREAM.RESTORE_{event}.{name}", f"restore_{event.lower()}", stream=name, **fields
        )


def _consumer_state(document: dict[str, Any]) -> ConsumerState:
    delivered, floor = document["delivered"], document["ack_floor"]
    return ConsumerState(
        delivered["consumer_seq"],
        delivered["stream_seq"],
        floor["consumer_seq"],
        floor["stream_seq"],
        {
            int(sequence): (each["Sequence"], each["Timestamp"])
            for sequence, each in (document.get("pending") or {}).items()
        },
        {int(sequence): count for sequence, count in (document.get("redelivered") or {}).items()},
    )
