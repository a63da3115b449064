"""
The batches of a replay, as its checkpoint has them: what is begun, and what is done.

    <checkpoint>/replay.json   what is replayed
    <checkpoint>/offsets/12    batch 12: up to which sequence of each stream, and begun when
    <checkpoint>/commits/12    batch 12 is done: how many messages were published so far

A batch is noted before its first message is sent, and again once all of them are stored. So
the next run goes on behind the last batch that is done. Of the one behind it, some messages
may be stored: it is done again as it was, and the sink looks in the target for what was
stored since it began.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from math import ceil
from operator import and_, or_
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.spark.pipelines.folder import Folder
from penstock.spark.pipelines.progress import newest, read_entry

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


class ReplayLog:
    """The checkpoint of a replay."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._done = newest(folder, "commits")
        self._begun = newest(folder, "offsets")
        commit = {} if self._done is None else read_entry(folder, "commits", self._done)
        self.messages: int = commit.get("messages", 0)
        """The number of messages that were published so far."""
        self.streams: dict[str, int] = commit.get("streams", {})
        """Up to which sequence each stream is published."""

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Take a checkpoint that is nobody's; raise if it is of something else."""
        if not self._folder.find("*"):
            self._folder.replace(IDENTITY, json.dumps(identity))
        if not self._folder.find(IDENTITY):
            raise ConfigError(
                f"the checkpoint {self._folder.at('')} is not of a replay; hint: give every "
                "pipeline a `checkpoint` of its own"
            )
        known = json.loads(self._folder.read(IDENTITY))
        changed = [f"`{name}`" for name in identity if identity[name] != known.get(name)]
        if changed:
            raise ConfigError(
                f"the checkpoint {self._folder.at('')} is of a replay with another "
                f"{', '.join(changed)}, and says what of that is published; hint: another "
                "replay needs another `checkpoint`"
            )

    def batches(self, rows: DataFrame, size: int) -> Iterator[Batch]:
        """Yield what is to be published, each batch once the one before it is done."""
        if self._begun is not None and self._begun != self._done:
            noted = read_entry(self._folder, "offsets", self._begun)
            yield Batch(self._begun, noted["began_s"], noted["streams"])
        for streams in plan(rows.where(behind(self.streams)), self.streams, size):
            batch = Batch(1 + (-1 if self._done is None else self._done), time.time(), streams)
            noted = {"began_s": batch.began_s, "streams": batch.streams}
            self._folder.replace(f"offsets/{batch.number}", json.dumps(noted))
            yield batch

    def rows_of(self, batch: Batch, rows: DataFrame) -> DataFrame:
        """Return the rows of the batch behind those that are done."""
        from pyspark.sql import functions as f

        ranges = [
            (f.col("stream") == stream)
            & (f.col("sequence") > self.streams.get(stream, 0))
            & (f.col("sequence") <= last)
            for stream, last in batch.streams.items()
            if last > self.streams.get(stream, 0)
        ]
        return rows.where(reduce(or_, ranges))

    def finish(self, batch: Batch, messages: int) -> None:
        """Note that a batch is done, and forget the one before."""
        self.messages, self.streams = self.messages + messages, dict(batch.streams)
        commit = {"messages": self.messages, "streams": self.streams}
        self._folder.replace(f"commits/{batch.number}", json.dumps(commit))
        self._done = batch.number
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
