"""
A micro-batch that is written a second time after the server has forgotten its ids.

JetStream remembers message ids for the stream's `duplicate_window`, two minutes by
default. A query that comes back after hours writes its last batch again, and a task
that is tried again late does too. Then the messages themselves are asked: the
target is read from when the batch began, and rows whose id is found there are not
published again.

When a batch began is the time of its entry in the checkpoint: see `checkpoint`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from penstock.errors import ClientError
from penstock.spark.connection import Connection
from penstock.spark.options import ConnectionOptions, SourceOptions
from penstock.spark.patience import Patience, persistently
from penstock.spark.source.fetch import read_range
from penstock.spark.source.position import Position, Range
from penstock.spark.source.stream import StreamState, first_at, read_duplicate_window_s, read_state

T = TypeVar("T")
CONNECTION_NAME = "penstock-spark-sink"
MESSAGE_ID = b"Nats-Msg-Id:"
FRESH_S = 1.0
"""A batch this young is written for the first time, or within every sensible window."""
CLOCK_SKEW_S = 60.0
"""How far the clocks of driver and server may differ."""


class Stored:
    """Tells which rows of a batch that began some time ago are stored already."""

    def __init__(self, options: ConnectionOptions, began_s: float, stream: str) -> None:
        self._options = options
        self._began_s = began_s
        self._stream = stream
        self._streams: dict[str, str] = {}
        self._ids: dict[str, set[bytes]] = {}

    def left_out(self, frames: list[bytes]) -> set[int]:
        """Return the positions of the frames that are not to be published again."""
        if time.time() - self._began_s < FRESH_S:
            return set()
        return {
            index
            for index, frame in enumerate(frames)
            if (found := _message_id(frame)) and found in self._ids_of(_subject(frame))
        }

    def _ids_of(self, subject: str) -> set[bytes]:
        """Return the ids in the stream that stores a subject, as far as it has forgotten any."""
        stream = self._stream or self._streams.get(subject)
        if stream is None:
            stream = self._streams[subject] = self._find(subject)
        if stream not in self._ids:
            self._ids[stream] = self._read(stream)
        return self._ids[stream]

    def _find(self, subject: str) -> str:
        found = self._ask(lambda connection: connection.call("STREAM.NAMES", {"subject": subject}))
        if not found["streams"]:
            raise ClientError(
                f"no stream stores `{subject}`; hint: create one, or check the column `subject`"
            )
        return str(found["streams"][0])

    def _read(self, stream: str) -> set[bytes]:
        # Half of it, for what is under way when the last of it is over.
        window_s = self._ask(lambda connection: read_duplicate_window_s(connection, stream)) / 2
        if time.time() - self._began_s < window_s:
            return set()
        state, whole = self._ask(lambda connection: self._since(connection, stream))
        source = SourceOptions(stream=stream, columns=("headers",), fail_on_data_loss=False)
        ids: set[bytes] = set()
        for batch in read_range(self._options, source, state.created, whole):
            for headers in batch.column("headers").to_pylist():
                ids.update(
                    pair["value"].encode() for pair in headers if pair["key"] == "Nats-Msg-Id"
                )
        return ids

    def _since(self, connection: Connection, stream: str) -> tuple[StreamState, Range]:
        """Return what was stored since the batch began."""
        state = read_state(connection, stream)
        since = datetime.fromtimestamp(self._began_s - CLOCK_SKEW_S, UTC)
        return state, Range(
            first_at(connection, state, Position("time", time=since)), state.last_sequence
        )

    def _ask(self, question: Callable[[Connection], T]) -> T:
        def attempt() -> T:
            with Connection(self._options, CONNECTION_NAME) as connection:
                return question(connection)

        return persistently(Patience(self._options.retry_timeout_seconds), attempt)


def _subject(frame: bytes) -> str:
    return frame.split(b" ", 2)[1].decode()


def _message_id(frame: bytes) -> bytes:
    """Return the id in the header block of a publish; empty if there is none."""
    line, _, rest = frame.partition(b"\r\n")
    if not line.startswith(b"HPUB "):
        return b""
    block = rest[: int(line.split()[-2])]
    _, found, value = block.partition(b"\r\n" + MESSAGE_ID)
    return value.partition(b"\r\n")[0].strip() if found else b""
