"""
Messages that are gone before they were read, and streams that are not the same any more.

Deleting single messages is what users do, and is no loss. Losing the *head* of a
stream to limits, age or a purge before the reader came there is, and so is a
stream that was deleted and made anew: its sequences start again and mean other
messages.
"""

from __future__ import annotations

import logging
from array import array

from penstock.errors import ClientError
from penstock.spark.options import SourceOptions
from penstock.spark.position import Range
from penstock.spark.stream import StreamState

log = logging.getLogger(__name__)


def check_same_stream(state: StreamState, created: str) -> None:
    """Raise if the stream was made anew since an offset in it was written down."""
    if state.created != created:
        raise ClientError(
            f"stream `{state.name}` was deleted and created again: it was created at {created}, "
            f"now at {state.created}, so sequences of the checkpoint mean other messages; "
            "hint: start with a new checkpoint"
        )


def check_head(state: StreamState, source: SourceOptions, first: int) -> int:
    """Return the first sequence that can be read; raise if that is loss, and loss is failure."""
    if state.last_sequence < first - 1:
        report(
            source,
            f"stream `{state.name}` ends at sequence {state.last_sequence}, before {first - 1}, "
            "which was read already: it was restored from an older state",
        )
        return first
    if state.earliest > first:
        report(
            source,
            f"messages {first} to {state.earliest - 1} of stream `{state.name}` are gone: "
            "removed by its limits, by age or by a purge before they were read",
        )
    return max(first, state.earliest)


def report(source: SourceOptions, text: str) -> None:
    """Raise, or say so and carry on, as `failOnDataLoss` wants it."""
    if source.fail_on_data_loss:
        raise ClientError(f"{text}; hint: `failOnDataLoss` = false carries on without them")
    log.warning("%s", text)


class Watch:
    """Watches one range while it is read: was the head of the stream faster than the reader?"""

    def __init__(self, source: SourceOptions, created: str, whole: Range) -> None:
        self._source = source
        self._created = created
        self._next = whole.first
        self._first_hole: int | None = None

    def begin(self, state: StreamState, first: int) -> int:
        """Check before reading; return where reading can begin."""
        check_same_stream(state, self._created)
        begin = check_head(state, self._source, first)
        self._next = max(self._next, begin)
        return begin

    def saw(self, sequences: bytes) -> int:
        """Take note of rows that came; return the sequence expected next."""
        rows = memoryview(sequences).cast("q")
        if self._first_hole is None and rows[-1] - self._next + 1 != len(rows):
            self._first_hole = self._find_hole(array("q", sequences))
        self._next = rows[-1] + 1
        return self._next

    def end(self, state: StreamState) -> None:
        """Check after reading. With subjects to filter by, holes say nothing."""
        check_same_stream(state, self._created)
        hole = self._first_hole
        if hole is not None and not self._source.subjects and state.earliest > hole:
            report(
                self._source,
                f"the head of stream `{state.name}` moved to {state.earliest} while it was read, "
                f"and message {hole} was gone before it was read",
            )

    def _find_hole(self, sequences: array[int]) -> int:
        expected = self._next
        for sequence in sequences:
            if sequence != expected:
                break
            expected += 1
        return expected
