"""
`STREAM.SNAPSHOT`: a stream leaves as an archive, in chunks that its reader asks for by acks.

At most a window of chunks is under way. Each chunk has a reply subject,
`$JS.SNAPSHOT.ACK.<stream>.<id>.<bytes>.<number>`, and an ack with any content makes room for the
next. The last chunk needs no ack; an empty message follows it. A client that acks nothing for a
while, or goes away, gets a final status and no more chunks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.core import snappy
from penstock.core.reports.clientinfo import client_info
from penstock.core.runs import message_count
from penstock.jetstream.api import streaminfo
from penstock.jetstream.consumers.consumer import Consumer
from penstock.jetstream.consumers.pullrequest import encode_status
from penstock.jetstream.snapshots import archive
from penstock.jetstream.snapshots.archive import ArchiveEntry
from penstock.jetstream.store import lookup
from penstock.protocol.rfc3339 import format_time

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.hot.wire import Op
    from penstock.jetstream.api.api import ApiRequest
    from penstock.jetstream.stream import Stream
    from penstock.jetstream.timers import Timer

KIB, MIB = 1024, 1024 * 1024
CHUNK_BYTES, WINDOW_BYTES = 128 * KIB, 8 * MIB
CHUNK_BYTES_MAX, WINDOW_BYTES_MAX = MIB, 32 * MIB
ACK_TIMEOUT_NS = 5_000_000_000
INTEREST_TIMEOUT_NS = 2_000_000_000


class Snapshot:
    """One snapshot that is being sent to a client."""

    def __init__(self, request: ApiRequest, stream: Stream, options: dict[str, Any]) -> None:
        self._request = request
        self._stream = stream
        self._context = stream.context
        self._deliver = options["deliver_subject"].encode()
        self._chunk_bytes = _clamped(options.get("chunk_size", 0) or CHUNK_BYTES, CHUNK_BYTES_MAX)
        window = _clamped(options.get("window_size", 0) or WINDOW_BYTES, WINDOW_BYTES_MAX)
        self._slots = max(window // self._chunk_bytes, 1)
        self.state = streaminfo.state(stream)
        with_consumers = not options.get("no_consumers", False)
        self._pieces = _pieces(stream, self.state, with_consumers=with_consumers)
        self._framed = bytearray()
        self._ack_subject = f"$JS.SNAPSHOT.ACK.{stream.name}.{self._context.new_id()}"
        self._sent = 0
        self._began_ns = self._context.clock_ns()
        self._timer: Timer | None = None
        self._had_interest = False

    def start(self) -> None:
        """Announce the start, and send the first chunks once somebody listens."""
        account = self._context.account
        self._advise("CREATE", state=self.state, client=self._client())
        pattern = f"{self._ack_subject}.>".encode()
        self._subscription = account.listen(pattern, self._on_acks)
        account.routes.watch(self._deliver, self._on_interest)
        self._had_interest = self._has_interest()
        if self._had_interest:
            self._send_chunks()
        else:
            self._wait(INTEREST_TIMEOUT_NS, self._send_chunks)

    def _has_interest(self) -> bool:
        """
        Tell whether somebody listens on exactly this subject.

        A client with one wildcard for all its inboxes subscribes to this one after our answer; it
        would drop earlier chunks.
        """
        routes = self._context.account.routes
        route = routes.cache.get(self._deliver) or routes.find(self._deliver)
        return any(each.subject == self._deliver for each in route.receivers())

    def _on_interest(self) -> None:
        has_interest = self._has_interest()
        if has_interest and not self._had_interest:
            # Later: this is called in the middle of a subscription.
            self._wait(0, self._send_chunks)
        elif self._had_interest and not has_interest:
            self._wait(0, lambda: self._end("408 No Interest", "no interest"))
        self._had_interest = has_interest

    def _on_acks(self, batch: list[Op], publisher: Session | None) -> None:
        self._slots += sum(map(message_count, batch))
        self._send_chunks()

    def _send_chunks(self) -> None:
        while self._slots > 0:
            if self._stream.is_closed:
                self._end("500 stream closed", "stream closed")
                return
            chunk = self._next_chunk()
            if len(chunk) < self._chunk_bytes:
                if chunk:
                    self._publish(chunk)
                self._end("204" if self._sent else "", "")
                return
            self._slots -= 1
            self._sent += 1
            reply = f"{self._ack_subject}.{len(chunk)}.{self._sent}".encode()
            self._publish(chunk, reply=reply)
        self._wait(ACK_TIMEOUT_NS, lambda: self._end("408 No Flow Response", "no flow response"))

    def _next_chunk(self) -> bytes:
        """Return the next chunk; the last one is shorter, and may be empty."""
        while len(self._framed) < self._chunk_bytes:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._framed += piece
        chunk = bytes(self._framed[: self._chunk_bytes])
        del self._framed[: self._chunk_bytes]
        return chunk

    def _publish(self, payload: bytes, *, reply: bytes = b"", header: bytes = b"") -> None:
        self._context.account.send(self._deliver, payload, reply=reply, header=header)

    def _end(self, status: str, error: str) -> None:
        """Report that no more chunks come, and why."""
        if self._timer is not None:
            self._timer.cancel()
        account = self._context.account
        account.unlisten(self._subscription)
        account.routes.unwatch(self._deliver, self._on_interest)
        self._publish(b"", header=_header(status))
        problem = {"error": error} if error else {}
        self._advise("COMPLETE", **self._span(), client=self._client(), **problem)

    def _wait(self, time_ns: int, action: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline_ns = self._context.clock_ns() + time_ns
        self._timer = self._context.timers.at(deadline_ns, lambda now_ns: action())

    def _span(self) -> dict[str, str]:
        end_ns = self._context.clock_ns()
        return {"start": format_time(self._began_ns), "end": format_time(end_ns)}

    def _client(self) -> dict[str, Any] | None:
        publisher = self._request.publisher
        return client_info(publisher) if publisher else None

    def _advise(self, event: str, **fields: Any) -> None:
        name = self._stream.name
        self._context.advisories.send(
            f"STREAM.SNAPSHOT_{event}.{name}", f"snapshot_{event.lower()}", stream=name, **fields
        )


def _clamped(size: int, size_max: int) -> int:
    return min(max(size, KIB), size_max)


def _header(status: str) -> bytes:
    return encode_status(status) if status else b""


def _pieces(stream: Stream, state: dict[str, Any], *, with_consumers: bool) -> Iterator[bytes]:
    """Yield the bytes of an archive, one read at a time."""
    consumers = list(stream.consumers.values()) if with_consumers else []
    now_ns = stream.context.clock_ns()
    state = state | {"consumer_count": len(consumers)}
    compress = snappy.compressor()
    yield archive.STREAM_IDENTIFIER
    entries = [ArchiveEntry(archive.STATE, now_ns, payload=_json(state))]
    entries += [_consumer_entry(each, state["last_seq"], now_ns) for each in consumers]
    yield snappy.frames(archive.MAGIC + b"".join(map(archive.encode_entry, entries)), compress)
    for messages in lookup.batches(stream.store, last_sequence=state["last_seq"]):
        entries = [
            ArchiveEntry(subject, time_ns, number, header, payload)
            for number, time_ns, subject, header, payload in messages
        ]
        yield snappy.frames(b"".join(map(archive.encode_entry, entries)), compress)
    yield snappy.frames(archive.encode_entry(archive.END))


def _consumer_entry(consumer: Consumer, last_sequence: int, now_ns: int) -> ArchiveEntry:
    """Return the state of a consumer, limited to the messages of the snapshot."""
    state = consumer.state()
    document: dict[str, Any] = {
        "delivered": {
            "consumer_seq": state.delivered_consumer_sequence,
            "stream_seq": min(state.delivered_stream_sequence, last_sequence),
        },
        "ack_floor": {
            "consumer_seq": state.ack_floor_consumer_sequence,
            "stream_seq": min(state.ack_floor_stream_sequence, last_sequence),
        },
        "pending": {
            str(sequence): {"Sequence": number, "Timestamp": time_ns}
            for sequence, (number, time_ns) in state.pending.items()
            if sequence <= last_sequence
        },
        "redelivered": {
            str(sequence): count
            for sequence, count in state.redelivered.items()
            if sequence <= last_sequence
        },
    }
    document = {name: value for name, value in document.items() if value}
    body = _json({"config": consumer.config.to_json(), "state": document})
    return ArchiveEntry(archive.CONSUMERS + consumer.name.encode(), now_ns, payload=body)


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
