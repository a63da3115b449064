"""
The streams that a replay stores in: each as it was when its first message came.

What was stored before is gone with a stream that is deleted, and a replay that went on into
another stream of the same name would bring the rest only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ClientError
from penstock.spark.options import ConnectionOptions
from penstock.spark.sink.sink import WritePlan
from penstock.spark.sink.stored import StoredRows, ask
from penstock.spark.source.streams import read_states

if TYPE_CHECKING:
    import pyarrow as pa


class Target(NamedTuple):
    """A stream, known by when it was created."""

    stream: str
    created: str


class Seen:
    """Takes note of where the rows of a task go, before they are sent."""

    def __init__(self, plan: WritePlan) -> None:
        self._stored = StoredRows(plan.connection, plan.began_s, plan.sink.stream)
        self.targets: set[Target] = set()

    def watch(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass rows on."""
        for batch in batches:
            for subject in batch.column("subject").unique().to_pylist():
                found = self._stored.find(subject.encode())
                self.targets.add(Target(found.name, found.created))
            yield batch


def check_targets(options: ConnectionOptions, targets: Iterable[Target]) -> None:
    """Raise if a stream is not the one that something was stored in."""
    wanted = sorted(set(targets))
    names = [target.stream for target in wanted]
    states = ask(options, lambda connection: read_states(connection, names))
    for name, created in wanted:
        found = states.get(name)
        if found is None or found.created != created:
            again = f" and created again at {found.created}" if found else ""
            raise ClientError(
                f"stream `{name}`, which was created at {created} and holds what this replay has "
                f"stored so far, was deleted{again}; hint: a new `checkpoint` replays all of it"
            )
