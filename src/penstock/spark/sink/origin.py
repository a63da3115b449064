"""
Which messages the rows of a write come from.

A row that carries the `stream` and `sequence` of its source needs no other id. That
holds for one row of each message: of two with one id, the second would be dropped as
a duplicate. So it is looked at, in each task before its rows are published and over
all tasks before a batch is committed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.errors import ClientError

if TYPE_CHECKING:
    import pyarrow as pa


class RowOrigins:
    """The sequences that one task has rows of, stream by stream."""

    def __init__(self) -> None:
        self._sequences: dict[str, list[pa.Array]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Take note of some rows; raise if two of them come from one message."""
        import pyarrow.compute as pc

        streams, sequences = batch.column("stream"), batch.column("sequence")
        for stream in streams.unique().to_pylist():
            rows = sequences.filter(pc.equal(streams, stream))
            _check(stream, [rows])
            self._sequences.setdefault(stream, []).append(rows)

    def packed(self) -> dict[str, bytes]:
        """Return them as the driver is told of them; raise if two rows come from one message."""
        for stream, pieces in self._sequences.items():
            _check(stream, pieces)
        return {stream: _pack(pieces) for stream, pieces in self._sequences.items()}


def check_tasks(tasks: Iterable[Mapping[str, bytes]]) -> None:
    """Raise if rows of two tasks come from one message."""
    streams: dict[str, list[pa.Array]] = {}
    for task in tasks:
        for stream, packed in task.items():
            streams.setdefault(stream, []).append(_unpack(packed))
    for stream, pieces in streams.items():
        ranges = sorted((piece[0].as_py(), piece[-1].as_py()) for piece in pieces)
        # Tasks that read ranges of a stream cannot have one message in common.
        if any(last >= first for (_, last), (first, _) in pairwise(ranges)):
            _check(stream, pieces)


def _check(stream: str, pieces: list[pa.Array]) -> None:
    import pyarrow as pa

    rows = pa.chunked_array(pieces)
    if len(rows) > len(rows.unique()):
        raise ClientError(
            f"some messages of `{stream}` have more than one row each in a batch, and rows of one "
            "message have one id, so that only one of them would be stored; hint: add a column "
            "`message_id` that tells them apart"
        )


def _pack(pieces: list[pa.Array]) -> bytes:
    """Write sequences in order, as steps from one to the next, most of which are alike."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = pa.chunked_array(pieces).combine_chunks()
    rows = rows.take(pc.sort_indices(rows))
    steps = pc.pairwise_diff(rows).fill_null(rows[0])
    return zlib.compress(steps.buffers()[1][: 8 * len(steps)], 1)


def _unpack(packed: bytes) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    steps = zlib.decompress(packed)
    found = pa.Array.from_buffers(pa.int64(), len(steps) // 8, [None, pa.py_buffer(steps)])
    return pc.cumulative_sum(found)
