"""The storage seam: a `Log` holds the bytes of messages, in files or in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from penstock.jetstream.store.values import Entry, Known, Message, Recall, Secure, Work

if TYPE_CHECKING:
    from penstock.jetstream.store.block import Block
    from penstock.jetstream.store.catalog import Catalog


def secure_nothing(last_sequence: int) -> None:
    """Return nothing to do. A `Secure`."""


def know_none(first_sequence: int, last_sequence: int) -> Sequence[Known] | None:
    """Return no ids. A `Recall`."""
    return None


@dataclass(slots=True)
class LogOptions:
    """How a log keeps messages. The store may change this at any time."""

    compresses: bool = False
    """Whether complete segments are to be compressed."""
    takes_back: bool = False
    """
    Whether a failure takes back everything that is not durable; nobody may have seen that then.

    Without it, that is kept in memory and stored as soon as the disk works again.
    """
    ids_ns_max: int = 0
    """How long to keep the ids of removed messages."""
    recall: Recall = know_none
    """Knows ids without reading the messages again."""
    secure: Secure = secure_nothing


class LogProgress(Protocol):
    """The appended messages of a log, and which of them would survive a power cut."""

    failure: str | None
    """Why appends are refused, or None."""

    @property
    def position(self) -> int:
        """The number of bytes appended since the log was opened, including records of removals."""

    @property
    def durable_position(self) -> int:
        """The position up to which everything would survive a power cut."""

    @property
    def durable_sequence(self) -> int:
        """The last sequence that would survive a power cut."""

    @property
    def is_settled(self) -> bool:
        """Whether everything appended and removed would survive a power cut."""

    @property
    def is_syncing(self) -> bool:
        """Whether a sync is under way."""


class Log(Protocol):
    """Holds the bytes of messages. The catalog says which messages those are."""

    @property
    def catalog(self) -> Catalog:
        """The messages that exist, and their places."""

    @property
    def options(self) -> LogOptions:
        """The options for keeping messages."""

    @property
    def progress(self) -> LogProgress:
        """The progress of the log, and its failure."""

    def append(
        self,
        first_sequence: int,
        entries: Sequence[Entry],
        *,
        is_atomic: bool = False,
        replaces: bool = False,
    ) -> None:
        """Store messages and tell the catalog; raise StoreError after a failure."""

    def fetch(self, block: Block, positions: Sequence[int]) -> list[Message | None]:
        """Return messages of one block; None for each whose bytes are damaged."""

    def fetch_one(self, block: Block, position: int) -> Message | None:
        """Return one message; None if its bytes are damaged."""

    def gone_messages(self) -> Iterable[Message]:
        """Return those messages that no block of the catalog has and the disk still does."""

    def gone_ids(self) -> list[Known]:
        """Return the ids of messages that are not in any of the catalog's blocks any more."""

    def mark(self) -> int:
        """Return the position that has to be durable before nothing so far can be undone."""

    def retreat(self) -> Log:
        """Cut off everything not durable, and return the remaining log. Slow; any thread."""

    def probe(self) -> None:
        """Raise OSError if the disk does not take the bytes it refused. Slow; any thread."""

    def flush(self) -> Work | None:
        """See `Store.flush`."""

    def maintain(self) -> Work | None:
        """See `Store.maintain`."""

    def close(self, *, saves: bool = True) -> None:
        """Close the files, or free the memory; if it `saves`, first make everything durable."""
