"""
Messages that are gone before they were read, and streams that are not the same any more.

Removing messages within a stream is what users and limits of subjects do, and is no
loss. Losing the *head* of a stream before the reader came there is, whatever removed
it, since nobody can tell; and so is a stream that was deleted and made anew: its
sequences start again and mean other messages.
"""

from __future__ import annotations

import logging
from array import array

from penstock.errors import ClientError
from penstock.spark.options import SourceOptions
from penstock.spark.source.position import Range
from penstock.spark.source.stream import StreamState

log = logging.getLogger(__name__)


def check_same_stream(state: StreamState, created: str) -> None:
    """Raise if the stream was made anew since an offset in it was written down."""
    if state.created != created:
        raise ClientError(
            f"stream `{state.name}` was deleted and created again: it was created at {created}, "
            f"now at {state.created}, so sequences of the checkpoint mean other messages; "
            "hint: start with a new checkpoint, and a pipeline with a new `target` too"
        )


def check_head(
    state: StreamState, source: SourceOptions, first: int, *, unfinished: int | None = None
) -> int:
    """
    Return the first sequence that can be read; raise if that is loss, and loss is failure.

    What was read from `unfinished` on is lost by such a failure as well.
    """
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
            f"messages {_lost_from(first, source, unfinished)} to {state.earliest - 1} "
            f"of stream `{state.name}` are gone: "
            "removed by its limits, by age, by a purge or by hand before they were read",
        )
    return max(first, state.earliest)


def _lost_from(first: int, source: SourceOptions, unfinished: int | None) -> int:
    """Return the first sequence that is lost if those from `first` on are gone."""
    # A failure takes with it what other tasks, or this one, had read of the micro-batch.
    return first if unfinished is None or not source.fail_on_data_loss else unfinished


def report(source: SourceOptions, text: str) -> None:
    """Raise, or say so and carry on, as `failOnDataLoss` wants it."""
    if source.fail_on_data_loss:
        raise ClientError(f"{text}; hint: `failOnDataLoss` = false carries on without them")
    log.warning("%s", text)


def report_gone(source: SourceOptions, stream: str) -> None:
    """Report a stream that was deleted before all of it was read."""
    report(source, f"stream `{stream}` was deleted before all of it was read")


class Watch:
    """
    Watches one range while it is read: was the head of the stream faster than the reader?

    A hole in the sequences is a message that was deleted, one on another subject, or one that
    was lost. Where the head of the stream is tells which: as long as it is not past the hole,
    nothing was lost there. So a hole is remembered until the head was looked at, which has to be
    soon, because it goes on moving behind the reader's back.
    """

    def __init__(
        self, source: SourceOptions, created: str, whole: Range, unfinished: int | None = None
    ) -> None:
        self._source = source
        self._unfinished = unfinished
        """Where the micro-batch begins that fails with this range."""
        self._created = created
        self._next = whole.first
        self._last = whole.last
        self._hole: int | None = None
        """The first sequence that did not come since the head was last asked for."""
        self._asked: int | None = None
        """The first that did not come before that."""

    def begin(self, state: StreamState, first: int) -> int:
        """Check before reading; return where reading can begin."""
        self._judge_all(state)
        begin = check_head(state, self._source, first, unfinished=self._unfinished)
        self._next = max(self._next, begin)
        return begin

    def saw(self, sequences: bytes) -> int:
        """Take note of rows that came; return the sequence expected next."""
        rows = memoryview(sequences).cast("q")
        if self._hole is None and rows[-1] - self._next + 1 != len(rows):
            self._hole = self._find_hole(array("q", sequences))
        self._next = rows[-1] + 1
        return self._next

    @property
    def wants_to_look(self) -> bool:
        """Whether it has to be known where the head of the stream is."""
        return self._hole is not None and self._asked is None

    def asked(self) -> None:
        """Take note that the head was asked for: the answer says nothing of later holes."""
        self._asked, self._hole = self._hole, None

    def look(self, state: StreamState) -> None:
        """Judge the holes that were there when the head was asked for."""
        self._judge(state, self._asked)
        self._asked = None

    def end(self, state: StreamState) -> None:
        """Check after reading. What did not come up to the end of the range is a hole too."""
        if self._hole is None and self._next <= self._last:
            self._hole = self._next
        self._judge_all(state)

    def gone(self) -> None:
        """Report that the stream is not there any more."""
        report_gone(self._source, self._source.stream)

    def _judge_all(self, state: StreamState) -> None:
        self._judge(state, self._hole if self._asked is None else self._asked)
        self._hole = self._asked = None

    def _judge(self, state: StreamState, hole: int | None) -> None:
        check_same_stream(state, self._created)
        if hole is not None and state.earliest > hole:
            first = _lost_from(hole, self._source, self._unfinished)
            report(
                self._source,
                f"the head of stream `{state.name}` moved to {state.earliest} while it was read, "
                f"and messages from {first} on may have been gone before they were read",
            )

    def _find_hole(self, sequences: array[int]) -> int:
        expected = self._next
        for sequence in sequences:
            if sequence != expected:
                break
            expected += 1
        return expected
