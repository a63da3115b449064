"""Ranges of streams, which the tasks of a query read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import InputPartition

from penstock.spark.envelopes.envelope import decompress_data
from penstock.spark.envelopes.opener import Opener
from penstock.spark.options import ConnectionOptions, SourceOptions
from penstock.spark.source.admission import PARTITION_MESSAGES_MIN
from penstock.spark.source.fetch import read_range
from penstock.spark.source.position import Range

if TYPE_CHECKING:
    import pyarrow as pa


class Piece(NamedTuple):
    """A range of one stream, known by when it was created."""

    stream: str
    created: str
    sequences: Range
    unfinished: int | None = None
    """Where the micro-batch that it is of begins in that stream."""
    subjects: tuple[str, ...] | None = None
    """Those the micro-batch reads of it since it was planned, whatever the options say."""


class ReadTask(InputPartition):
    """One range of a large stream, or one each of several small ones."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = list(pieces)


def new_tasks(pieces: Sequence[Piece], source: SourceOptions) -> list[InputPartition]:
    """Return the tasks that read some ranges, in the order they are given."""
    tasks: list[list[Piece]] = []
    for piece in pieces:
        if tasks and source.min_partitions is None and _fits(tasks[-1], piece):
            tasks[-1].append(piece)
        else:
            tasks.append([piece])
    return [ReadTask(each) for each in tasks]


def _fits(task: Sequence[Piece], piece: Piece) -> bool:
    """Tell whether a task may read one more range: of another stream, and not too much in all."""
    if task[-1].stream == piece.stream:
        return False
    size = sum(each.sequences.size for each in (*task, piece))
    return size <= PARTITION_MESSAGES_MIN


def _read_piece(
    connection: ConnectionOptions, source: SourceOptions, piece: Piece
) -> Iterator[pa.RecordBatch]:
    only = source.of(piece.stream)
    if piece.subjects is not None:
        only = replace(only, subjects=piece.subjects)
    return read_range(connection, only, piece.created, piece.sequences, unfinished=piece.unfinished)


def read_task(
    connection: ConnectionOptions,
    source: SourceOptions,
    opener: Opener | None,
    task: InputPartition,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task."""
    # For a query without tasks, Spark makes up a partition of its own.
    pieces = task.pieces if isinstance(task, ReadTask) else []
    batches: Iterator[pa.RecordBatch] = (
        batch
        for piece in pieces
        if piece.sequences.size
        for batch in _read_piece(connection, source, piece)
    )
    if opener is not None:
        return opener.open(batches)
    return map(decompress_data, batches) if source.decompress else batches
