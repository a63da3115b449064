"""
The batches of a replay, as its checkpoint has them: what is begun, and what is done.

    <checkpoint>/replay.json   what is replayed, and what the ids of its messages start with
    <checkpoint>/offsets/12    batch 12: up to which sequence of each stream, and begun when
    <checkpoint>/commits/12    batch 12 is done: how many messages were published so far, up to
                               which sequence of each stream, and into which streams

A batch is noted before its first message is sent, and again once all of them are stored. So
the next run goes on behind the last batch that is done. Of the one behind it, some messages
may be stored: it is done again as it was, and the sink looks in the target for what was
stored since it began.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import reduce
from math import ceil
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.spark.pipelines.folder import Folder, damaged, read_record
from penstock.spark.pipelines.progress import newest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

IDENTITY = "replay.json"
PIECES_MAX = 1000
"""The most parts that one stream is planned in."""


@dataclass(frozen=True)
class Batch:
    """A part of what is to be replayed: of each stream what is behind one mark up to another."""

    number: int
    began_s: float
    streams: Mapping[str, int]
    """Up to which sequence each stream is published once the batch is done."""


@dataclass(frozen=True)
class Done:
    """The progress of a replay."""

    messages: int = 0
    """The number of messages that were published."""
    streams: Mapping[str, int] = field(default_factory=dict)
    """Up to which sequence each stream is published."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """The streams that hold it, and when each was created."""

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Done:
        """Return what an entry says."""
        return cls(int(entry["messages"]), streams_of(entry), dict(entry["targets"]))


def streams_of(entry: Mapping[str, Any]) -> dict[str, int]:
    """Return up to which sequence of each stream an entry goes."""
    return {str(stream): int(sequence) for stream, sequence in entry["streams"].items()}


class ReplayLog:
    """The checkpoint of a replay."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._begun: int | None = None
        self._finished: int | None = None
        self.done = Done()

    @property
    def _next(self) -> int:
        return 0 if self._finished is None else self._finished + 1

    def claim(self, identity: Mapping[str, Any]) -> str:
        """Take a checkpoint that is nobody's, and return its id; raise if it is another's."""
        if not self._folder.find("*"):
            named = {"id": f"replay-{uuid.uuid4().hex}", **identity}
            self._folder.replace(IDENTITY, json.dumps(named))
        if not self._folder.find(IDENTITY):
            raise ConfigError(
                f"the checkpoint {self._folder.at('')} is not of a replay; hint: give every "
                "pipeline a `checkpoint` of its own"
            )
        name, known = read_record(self._folder, IDENTITY, lambda found: (str(found["id"]), found))
        changed = [f"`{name}`" for name in identity if identity[name] != known.get(name)]
        if changed:
            raise ConfigError(
                f"the checkpoint {self._folder.at('')} is of a replay with another "
                f"{', '.join(changed)}, and says what of that is published; hint: another "
                "replay needs another `checkpoint`"
            )
        self._go_on()
        return name

    def _go_on(self) -> None:
        """Read which batches are begun and done."""
        self._begun, self._finished = (
            newest(self._folder, "offsets"),
            newest(self._folder, "commits"),
        )
        if self._finished is not None:
            self.done = read_record(self._folder, f"commits/{self._finished}", Done.read)
        if self._begun is not None and self._begun > self._next:
            raise damaged(self._folder.at(f"commits/{self._begun - 1}"))

    def batches(self, rows: DataFrame, size: int) -> Iterator[Batch]:
        """Yield what is to be published, each batch once the one before it is done."""
        if self._begun == self._next:
            yield read_record(
                self._folder,
                f"offsets/{self._begun}",
                lambda noted: Batch(self._next, float(noted["began_s"]), streams_of(noted)),
            )
        for streams in plan(rows.where(behind(self.done.streams)), self.done.streams, size):
            batch = Batch(self._next, time.time(), streams)
            noted = {"began_s": batch.began_s, "streams": batch.streams}
            self._folder.replace(f"offsets/{batch.number}", json.dumps(noted))
            yield batch

    def rows_of(self, batch: Batch, rows: DataFrame) -> DataFrame:
        """Return the rows of the batch behind those that are done."""
        from pyspark.sql import functions as f

        done = self.done.streams
        ranges = [
            (f.col("stream") == stream)
            & (f.col("sequence") > done.get(stream, 0))
            & (f.col("sequence") <= last)
            for stream, last in batch.streams.items()
            if last > done.get(stream, 0)
        ]
        return rows.where(reduce(or_, ranges))

    def finish(self, batch: Batch, messages: int, targets: Mapping[str, str]) -> None:
        """Note that a batch is done, and forget the one before."""
        self.done = Done(
            self.done.messages + messages, batch.streams, {**self.done.targets, **targets}
        )
        self._folder.replace(f"commits/{batch.number}", json.dumps(asdict(self.done)))
        self._finished = batch.number
        for log in ("offsets", "commits"):
            self._folder.remove(f"{log}/{batch.number - 1}")


def behind(streams: Mapping[str, int]) -> Column:
    """Return the condition for rows behind a mark in their stream."""
    from pyspark.sql import functions as f

    stream, sequence = f.col("stream"), f.col("sequence")
    conditions = [(stream != name) | (sequence > mark) for name, mark in streams.items()]
    return reduce(and_, conditions, f.lit(True))


def plan(rows: DataFrame, done: Mapping[str, int], size: int) -> Iterator[dict[str, int]]:
    """Yield the marks behind each batch: stream by stream, about as many messages in each."""
    from pyspark.sql import functions as f

    counted = rows.groupBy("stream").agg(f.count("*"), f.max("sequence"))
    marks, waiting = dict(done), 0.0
    for stream, count, last in sorted(map(tuple, counted.collect())):
        of_stream = rows.where(f.col("stream") == stream)
        ends = sorted({*_cuts(of_stream, min(PIECES_MAX, ceil(count / size))), last})
        each = count / len(ends)
        for end in ends:
            if waiting and waiting + each > size:
                yield dict(marks)
                waiting = 0.0
            marks[stream], waiting = end, waiting + each
    if waiting:
        yield marks


def _cuts(rows: DataFrame, pieces: int) -> list[int]:
    """Return the sequences that cut a stream into a number of pieces."""
    if pieces == 1:
        return []
    cuts = [piece / pieces for piece in range(1, pieces)]
    return [int(cut) for cut in rows.approxQuantile("sequence", cuts, 0.2 / pieces)]
