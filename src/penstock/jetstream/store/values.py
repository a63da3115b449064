"""
What a stream asks of its storage: the `Store` protocol and the values that cross it.

A store numbers messages, finds them again, removes them, and says when they are
safe. It has no clock, no thread and no event loop; the server drives it in ticks:

    store.append(entries)          as often as it likes: buffered, cheap
    work = store.flush()           once a tick: one write to the operating system
    work.run()                     in a thread: returns when a power cut changes nothing
    work.finish(error)             back on the loop: `durable_sequence` moves up

and lets PubAcks leave up to `durable_sequence`. When the disk fails, `failure`
says why, appends raise StoreError, and `flush` tries again each time it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from penstock.hot.records import Entry as Entry
from penstock.hot.records import Message as Message

Filters: TypeAlias = tuple[bytes, ...]
"""Subjects, possibly with wildcards, of which one must match. Empty matches everything."""


@dataclass(frozen=True, kw_only=True)
class StoreLimits:
    """What a store may hold before it drops the oldest; 0 is no limit."""

    messages_max: int = 0
    bytes_max: int = 0
    age_ns_max: int = 0
    messages_per_subject_max: int = 0
    compresses: bool = False
    """Whether it is to hold them compressed; what that saves is not counted."""


@dataclass(frozen=True, kw_only=True)
class StoreState:
    """The figures of StreamInfo's `state`; times are 0 where there is no message."""

    messages: int
    size_bytes: int
    first_sequence: int
    first_time_ns: int
    last_sequence: int
    last_time_ns: int
    subjects: int
    deleted: int
    """Sequences between the first and the last that are gone."""
    lost: int
    """Messages that were damaged on disk and could not be read back."""


class Work(Protocol):
    """Something slow a store wants done: `run` in any thread, then `finish` on the loop."""

    def run(self) -> None:
        """Do it. Touches no state of the store; raises OSError, or whatever else goes wrong."""

    def finish(self, error: Exception | None = None) -> None:
        """Tell the store how it went. Must be called exactly once, in the loop's thread."""


class Store(Protocol):
    """
    The messages of one stream.

    Sequences are given in order, without gaps, and never given again: not after
    a purge, not after a restart. `size_bytes` counts as nats-server does.
    """

    limits: StoreLimits
    """
    May be replaced at any time; call `enforce` afterwards. A new limit per subject
    takes effect at once.
    """

    def watch_damage(self, on_lost: Callable[[int], None]) -> None:
        """Call back with the sequence of each message that turns out to be damaged."""

    @property
    def lost(self) -> int:
        """Return how many messages were damaged on disk and could not be read back."""

    @property
    def first_sequence(self) -> int:
        """Return the first message's sequence, or `last_sequence + 1` when empty."""

    @property
    def last_sequence(self) -> int:
        """Return the last sequence ever given, 0 if none."""

    @property
    def durable_sequence(self) -> int:
        """Return the last sequence that would survive a power cut."""

    @property
    def messages(self) -> int:
        """Return how many messages there are."""

    @property
    def size_bytes(self) -> int:
        """Return how many bytes they take."""

    @property
    def removals(self) -> int:
        """Return a number that changes whenever a message is removed, for whatever reason."""

    @property
    def position(self) -> int:
        """Return how many bytes were appended since it was opened, removals on record too."""

    @property
    def durable_position(self) -> int:
        """Return up to which position everything would survive a power cut."""

    @property
    def dirty_bytes(self) -> int:
        """
        Return the bytes appended but not yet durable.

        They are held in memory too: who syncs at intervals should do so early when
        this grows beyond some megabytes.
        """

    @property
    def failure(self) -> str | None:
        """Return why appends are refused, or None while all is well."""

    def append(
        self, entries: Sequence[Entry], *, is_atomic: bool = False, replaces: bool = False
    ) -> int:
        """
        Add messages, drop what the limits no longer allow, return the first new sequence.

        If it is atomic, a power cut takes all of them or none. If it `replaces` others,
        whatever is removed before the next append or flush belongs to it: after a crash
        both happened or neither. Nothing is durable yet.
        Raises StoreError, and adds nothing, after a failure.
        """

    def get(self, sequence: int) -> Message | None:
        """Return one message, or None if it is not there."""

    def read(
        self,
        first_sequence: int,
        *,
        count_max: int,
        bytes_max: int,
        filters: Filters = (),
        last_sequence: int | None = None,
    ) -> tuple[list[Message], int]:
        """
        Return the next messages in order, and the sequence to continue from.

        The first match is returned whatever its size. An empty list does not
        mean the end: a sparse filter stops after a bounded search. The end is
        when the sequence returned is above `last_sequence`.
        """

    def last(self, subject: bytes) -> tuple[int, int]:
        """Return a subject's last sequence and its number of messages; (0, 0) if none."""

    def subjects(self, *filters: bytes) -> list[tuple[bytes, int, int]]:
        """Return (subject, last sequence, messages) for every subject that matches; none is all."""

    def sequence_at(self, time_ns: int) -> int:
        """Return the first sequence stored at or after a time, else `last_sequence + 1`."""

    def count(self, first_sequence: int, filters: Filters = ()) -> int:
        """Return how many messages match from a sequence on."""

    def deleted(self, count_max: int) -> list[int]:
        """Return the sequences that are gone between the first and the last."""

    def remove(self, sequences: Iterable[int], *, erase: bool = False) -> int:
        """
        Remove single messages, return how many were there.

        With `erase` their bytes are overwritten or dropped by the next `maintain`.
        """

    def skip(self, count: int) -> None:
        """Give so many sequences to messages that are not there."""

    def purge(self, pattern: bytes = b">", *, before: int = 0, keep: int = 0) -> int:
        """
        Remove the messages that match; return how many.

        Only those below sequence `before` if that is not 0; all but the last
        `keep` of them. `before` may lie above the last sequence when the pattern
        is `>`: the next message then gets that sequence.
        """

    def enforce(self, now_ns: int) -> int:
        """Remove what is over the limits or too old; return how many."""

    def state(self) -> StoreState:
        """Return the figures of the store."""

    def flush(self) -> Work | None:
        """
        Hand what is buffered to the operating system; return what makes it durable.

        The work covers what was written before it began to run. Until it is finished,
        `flush` writes but returns None. Call it again while there are `dirty_bytes`:
        at the end of a segment only that is synced, and the rest the next time.
        """

    def maintain(self) -> Work | None:
        """
        Return the next piece of housekeeping (sealing, compaction, erasure), if there is one.

        Independent of `flush`; may run beside its work. Wants a turn now and then even
        under load.
        """

    def close(self) -> None:
        """Make everything durable and let go of the files. Blocks."""

    def discard(self) -> None:
        """Let go of the files as they are: they are about to be removed."""


def complete(work: Work | None) -> None:
    """Do a piece of work here and now."""
    if work is None:
        return
    try:
        work.run()
    except Exception as error:
        work.finish(error)
    else:
        work.finish()
