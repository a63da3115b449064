"""
The sink: rows become messages, each stored once.

Every message carries an id that says what its row is: from a column `message_id`, or
made of query, batch, and the `stream` and `sequence` the row comes from. JetStream
drops an id it has seen within the stream's `duplicate_window`. So a task that is
retried or runs twice, and a batch that is written again after a restart, store
nothing twice, however the rows are spread over tasks the second time.

The stream has to remember ids for longer than the second attempt takes to come,
which after a crash is the time the query was down; beyond that, `stored` looks up
what of the batch is stored, for which it has to see the checkpoint.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from penstock.client.messages import encode_headers
from penstock.errors import ClientError, ConfigError
from penstock.protocol.subjects import is_valid_literal
from penstock.spark.options import ConnectionOptions, SinkOptions
from penstock.spark.sink.origin import RowOrigins, check_tasks
from penstock.spark.sink.publish import SinkWindow
from penstock.spark.sink.stored import StoredRows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TYPES = {
    "subject": ("string",),
    "data": ("binary", "string"),
    "headers": (
        "array<struct<key:string,value:string>>",
        "map<string,string>",
        "map<string,array<string>>",
    ),
    "message_id": ("string",),
    "stream": ("string",),
    "sequence": ("bigint",),
}
MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_STREAM = "Nats-Expected-Stream"
NATS = "nats-"


@dataclass(frozen=True)
class WritePlan:
    """The plan of a write, for every one of its tasks."""

    connection: ConnectionOptions
    sink: SinkOptions
    job: str
    """The prefix of made ids; the same for all attempts of one job."""
    began_s: float
    """Start of the first attempt, at the earliest: of a micro-batch perhaps in an earlier run."""


ALWAYS_S = 0.0
"""When a job began that may have been run at any time before, with the same ids."""


@dataclass
class TaskReport(WriterCommitMessage):
    """The report of a task to the driver."""

    messages: int
    duplicates: int
    origins: dict[str, bytes]
    """The source messages of the rows, by stream, if the ids were made of them."""
    doubled: list[str]
    """Ids that are stored twice: a server was away for longer than it remembers them."""


def plan(
    connection: ConnectionOptions,
    sink: SinkOptions,
    schema: StructType,
    *,
    overwrite: bool = False,
    began_s: float | None = None,
) -> WritePlan:
    """Check that the rows can be written at all."""
    if overwrite:
        raise ConfigError("a stream can only be appended to; hint: .mode('append')")
    columns = {field.name: field.dataType.simpleString() for field in schema}
    for name, kind in columns.items():
        if name not in TYPES:
            raise ConfigError(f"no use for the column `{name}`; valid: {_names(TYPES)}")
        if kind not in TYPES[name]:
            raise ConfigError(f"column `{name}` is {kind}; valid: {_names(TYPES[name])}")
    if "data" not in columns:
        raise ConfigError("the column `data` is missing")
    if ("subject" in columns) == bool(sink.subject):
        raise ConfigError("the subject is either a column or the option `subject`")
    if sink.message_ids != "none" and not ("message_id" in columns or has_origin(columns)):
        raise ConfigError(
            "nothing says what a row is, so that one that is tried again could be stored twice; "
            "hint: keep the source's columns `stream` and `sequence`, or add a column "
            "`message_id`, or do without by `messageIds` = none"
        )
    job = sink.message_id_prefix or uuid.uuid4().hex
    # Attempts of this run begin after their plan, which is the driver's.
    return WritePlan(connection, sink, job, time.time() if began_s is None else began_s)


def has_origin(columns: Container[str]) -> bool:
    """Tell whether rows say which message they come from."""
    return "stream" in columns and "sequence" in columns


class Writer(DataSourceArrowWriter):
    """Writes the rows of a batch."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Publish the rows of one partition."""
        return write(self._plan, self._plan.job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """See that no row took another's id, and that none is there twice."""
        check(messages)


def write(plan: WritePlan, job: str, batches: Iterator[pa.RecordBatch]) -> TaskReport:
    """Publish the rows of one task."""
    encoder, sink = Encoder(plan.sink, job), plan.sink
    identified = sink.message_ids != "none"
    stored = StoredRows(plan.connection, plan.began_s, sink.stream) if identified else None
    with SinkWindow(plan.connection, sink.window, sink.rate_per_second, stored=stored) as window:
        for batch in batches:
            tokens, frames = encoder.encode(batch, window.reply_prefix)
            _check_sizes(frames, window.payload_bytes_max)
            window.add(tokens, frames)
        window.flush()
    doubled = stored.twice(window.late) if stored else []
    return TaskReport(window.acked, window.duplicates, encoder.origins.packed(), doubled)


def check(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raise if rows of a write took each other's ids, or were stored twice."""
    tasks = [each for each in messages if isinstance(each, TaskReport)]
    check_tasks(each.origins for each in tasks)
    doubled = [each for task in tasks for each in task.doubled]
    if doubled:
        raise ClientError(
            f"{len(doubled)} rows are stored twice, by two attempts at one task: the server took "
            f"longer to store them than it remembers ids, as `{doubled[0]}`; hint: a longer "
            "`duplicate_window` of the target"
        )


def _names(names: Sequence[str] | dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _check_sizes(frames: list[bytes], payload_bytes_max: int) -> None:
    """Refuse what the server would hang up on. The line and the ends of lines do not count."""
    for frame in frames:
        if len(frame) > payload_bytes_max:
            line = frame[: frame.index(b"\r\n")].split()
            if int(line[-1]) > payload_bytes_max:
                raise ClientError(
                    f"a row for `{line[1].decode()}` has {int(line[-1])} bytes with its headers, "
                    f"the server's `max_payload` is {payload_bytes_max}"
                )


class Encoder:
    """Turns record batches into the frames of publishes, counting rows over all of them."""

    def __init__(self, sink: SinkOptions, job: str) -> None:
        self._sink = sink
        self._job = job
        self._rows = 0
        self._subjects: set[bytes] = set()
        self.origins = RowOrigins()
        """Which messages the rows come from, if their ids are made of that."""

    def encode(self, batch: pa.RecordBatch, reply_prefix: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return a token and a frame for each row."""
        names = batch.schema.names
        subjects = self._subject_rows(batch, names)
        blocks = self._blocks(batch, names)
        payloads = _bytes_of(batch.column("data"))
        tokens = [b"%d" % row for row in range(self._rows, self._rows + batch.num_rows)]
        self._rows += batch.num_rows
        rows = zip(subjects, tokens, blocks, payloads, strict=True)
        return tokens, [
            b"HPUB %b %b%b %d %d\r\n%b%b\r\n"
            % (subject, reply_prefix, token, len(block), len(block) + len(data), block, data)
            if block
            else b"PUB %b %b%b %d\r\n%b\r\n" % (subject, reply_prefix, token, len(data), data)
            for subject, token, block, data in rows
        ]

    def _subject_rows(self, batch: pa.RecordBatch, names: Sequence[str]) -> list[bytes]:
        if "subject" not in names:
            return [self._sink.subject.encode()] * batch.num_rows
        rows = _bytes_of(batch.column("subject"))
        for subject in set(rows) - self._subjects:
            if not is_valid_literal(subject):
                raise ClientError(f"column `subject`: {subject!r} cannot be published to")
            self._subjects.add(subject)
        return rows

    def _blocks(self, batch: pa.RecordBatch, names: Sequence[str]) -> list[bytes]:
        """Return the header block of each row."""
        ids = self._ids(batch, names)
        if "headers" in names or "message_id" in names:
            headers = (
                batch.column("headers").to_pylist() if "headers" in names else [None] * len(ids)
            )
            return [self._block(*row) for row in zip(headers, ids, strict=True)]
        if self._sink.message_ids == "none":
            return [self._block(None, None)] * len(ids)
        # All but the id is the same in every block.
        front, _, back = self._block(None, "\0").partition(b"\0")
        return [b"%b%b%b" % (front, str(message_id).encode(), back) for message_id in ids]

    def _ids(self, batch: pa.RecordBatch, names: Sequence[str]) -> list[str | None]:
        if self._sink.message_ids == "none":
            return [None] * batch.num_rows
        if "message_id" in names:
            return self._given_ids(batch.column("message_id"))
        for column in ("stream", "sequence"):
            if batch.column(column).null_count:
                raise ClientError(
                    f"the column `{column}` is null in a row, so that nothing says which message "
                    "it comes from; hint: add a column `message_id`"
                )
        self.origins.add(batch)
        origin = zip(
            batch.column("stream").to_pylist(), batch.column("sequence").to_pylist(), strict=True
        )
        return [f"{self._job}-{stream}-{sequence}" for stream, sequence in origin]

    def _given_ids(self, column: pa.Array) -> list[str | None]:
        ids: list[str | None] = column.to_pylist()
        if self._sink.message_ids == "required" and not all(ids):
            raise ClientError(
                "the column `message_id` is null or empty in a row, which could be stored twice; "
                "hint: `messageIds` = optional allows it"
            )
        return ids

    def _block(self, headers: Any, message_id: str | None) -> bytes:
        pairs = list(_pairs(headers)) if headers else []
        if self._sink.nats_headers == "drop":
            # In a row that was read from a stream they belong to the first publication.
            pairs = [pair for pair in pairs if not pair[0].lower().startswith(NATS)]
        if message_id and not any(key == MESSAGE_ID for key, _ in pairs):
            pairs.append((MESSAGE_ID, message_id))
        if self._sink.stream and not any(key == EXPECTED_STREAM for key, _ in pairs):
            pairs.append((EXPECTED_STREAM, self._sink.stream))
        return encode_headers(pairs) if pairs else b""


def _bytes_of(column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary())
    rows: list[Any] = column.to_pylist()
    return [b"" if row is None else row for row in rows] if column.null_count else rows


def _pairs(headers: Any) -> Iterator[tuple[str, str]]:
    """Yield the headers of a row that have a value: structs, or a map, maybe of lists."""
    for entry in filter(None, headers):
        key, value = (entry["key"], entry["value"]) if isinstance(entry, dict) else entry
        if key is None:
            raise ClientError("a header has no key; hint: leave it out by `filter`")
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                yield key, each
