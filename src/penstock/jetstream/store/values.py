"""The values that go in and out of a store, and the slow work of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from penstock.errors import StoreError
from penstock.hot.records import Entry as Entry
from penstock.hot.records import Message as Message

Known: TypeAlias = tuple[int, int, bytes]
"""The id of a message: its sequence, its time, and the id."""
Recall: TypeAlias = Callable[[int, int], Sequence[Known] | None]
"""Returns the ids of messages from one sequence to another; None if they are unknown."""
Secure: TypeAlias = Callable[[int], Callable[[], None] | None]
"""
Returns what has to be saved, in a thread, before the disk loses removed messages up to a sequence.

None if nothing has to be.
"""
Filters: TypeAlias = tuple[bytes, ...]
"""Subjects, possibly with wildcards, of which one must match. Empty matches everything."""
SEQUENCE_MAX = 2**62
"""The last sequence that a message can have: sums with it still fit 64 bits with a sign."""


@dataclass(frozen=True, kw_only=True)
class StoreLimits:
    """The limits beyond which a store drops the oldest messages; 0 is no limit."""

    messages_max: int = 0
    bytes_max: int = 0
    age_ns_max: int = 0
    messages_per_subject_max: int = 0
    compresses: bool = False
    """Whether to compress messages; the saved space is not counted."""
    ids_ns_max: int = 0
    """How long to know the ids of removed messages."""


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
    """Removed sequences between the first and the last."""
    lost: int
    """Messages that were damaged on disk and could not be read back."""


class Findings(NamedTuple):
    """The condition of the files of a store when it was opened, in words for people."""

    faults: list[str]
    """Damage, and missing files."""
    notes: list[str]
    """The usual leftovers of a crash."""


class Work(Protocol):
    """A slow task of a store: `run` in any thread, then `finish` on the loop."""

    def run(self) -> None:
        """Do it. Touches no state of the store; raises OSError, or any other error."""

    def finish(self, error: Exception | None = None) -> None:
        """Report the outcome to the store. Must be called exactly once, in the loop's thread."""


class Independent:
    """Work that shares nothing with other work of its commit, and may run beside it."""


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


def check_room(following: int) -> None:
    """Check that there is a sequence for each message before the one that would follow them."""
    if following > SEQUENCE_MAX + 1:
        raise StoreError("all sequences are used up")
