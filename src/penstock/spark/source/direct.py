"""
Reading a work queue without taking from it.

A consumer on a work queue is a worker: what it gets is gone for the others. So
here the store itself is asked, with direct gets of some hundred messages each.
That costs the server more for each message than a consumer does, and a stream has
to allow it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.client.jetstream.api import encode
from penstock.client.jetstream.streams import DIRECT_HEADERS
from penstock.client.messages import status_of
from penstock.errors import ClientError
from penstock.hot.wire import MSG, Op
from penstock.protocol import headers as header_block
from penstock.protocol.subjects import matches
from penstock.spark.connection import Connection
from penstock.spark.options import SourceOptions
from penstock.spark.source.position import Range
from penstock.spark.source.schema import arrow_schema
from penstock.spark.source.stream import StreamState

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_MESSAGES = 500
NOT_FOUND, END_OF_BATCH = 404, 204


class Page(NamedTuple):
    """Some rows, and the sequences that were looked at for them; none if there were none."""

    rows: pa.RecordBatch
    sequences: bytes


def check_direct(state: StreamState) -> None:
    """Raise if the stream does not let its messages be read without a consumer."""
    if not state.allow_direct:
        raise ClientError(
            f"`{state.name}` is a work queue, whose messages only its workers may take; hint: let "
            "them be read in place with `allow_direct` = true, or read a stream that sources it"
        )


def read_page(connection: Connection, source: SourceOptions, wanted: Range) -> Page:
    """Return the first messages of a range that are still stored."""
    import pyarrow as pa

    request = {"seq": wanted.first, "batch": BATCH_MESSAGES, "max_bytes": source.fetch_bytes_max}
    found = [_row(source.stream, operation) for operation in _answers(connection, source, request)]
    patterns = [subject.encode() for subject in source.subjects]
    rows = [
        row
        for row in found
        if row["sequence"] <= wanted.last
        and (not patterns or any(matches(each, row["subject"].encode()) for each in patterns))
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(source.columns))
    return Page(batch, array("q", [row["sequence"] for row in found]).tobytes())


def _answers(
    connection: Connection, source: SourceOptions, request: dict[str, Any]
) -> Iterator[Op]:
    """Yield the messages of one direct get."""
    reply = connection.new_reply()
    subject = f"{connection.options.api_prefix}.DIRECT.GET.{source.stream}"
    connection.publish(subject, encode(request), reply)
    while True:
        operation = connection.next_operation()
        if operation[0] != MSG or operation[1] != reply:
            continue
        code, text = status_of(operation)
        if code in (NOT_FOUND, END_OF_BATCH):
            return
        if code:
            raise ClientError(f"`{source.stream}` cannot be read in place: {code} {text}")
        yield operation


def _row(stream: str, operation: Op) -> dict[str, Any]:
    header_bytes, data = operation[4], operation[5]
    pairs = header_block.decode(data[:header_bytes])
    # Those the server adds come last, so that a message cannot say it is another.
    added = dict(pair for pair in pairs if pair[0] in DIRECT_HEADERS)
    return {
        "subject": added["Nats-Subject"],
        "data": data[header_bytes:],
        "headers": [
            {"key": key, "value": value} for key, value in pairs if key not in DIRECT_HEADERS
        ],
        "stream": stream,
        "sequence": int(added["Nats-Sequence"]),
        "time": datetime.fromisoformat(added["Nats-Time-Stamp"]),
    }
