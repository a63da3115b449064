"""The stream that a consumer reads, as the consumer sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.jetstream.answers import Answers
    from penstock.jetstream.config.stream import StreamConfig
    from penstock.jetstream.context import Context
    from penstock.jetstream.readers import RetainingReader
    from penstock.jetstream.store.store import Store
    from penstock.jetstream.unsafedeletes import UnsafeDeletes


class StreamSource(Protocol):
    """A stream: its visible messages, and what it keeps for its readers."""

    config: StreamConfig
    visible_sequence: int
    """The last message that consumers may see."""
    is_held: bool
    """Whether consumers wait until it is known which messages exist."""
    unsafe_deletes: UnsafeDeletes
    """Deleted messages that nobody may pass by yet."""
    is_dropped: bool
    """Whether its account no longer has it."""

    @property
    def name(self) -> str:
        """The name of the stream."""

    @property
    def context(self) -> Context:
        """The context of the account's streams."""

    @property
    def store(self) -> Store:
        """The messages."""

    @property
    def answers(self) -> Answers:
        """The answers the stream owes."""

    def touch(self) -> None:
        """Make the next commit include the changes of the stream."""

    def remove_consumer(self, name: str) -> None:
        """Forget a consumer that is being deleted."""

    def consumers_changed(self) -> None:
        """Drop messages that nobody waits for any more."""

    def on_acked(self, reader: RetainingReader, sequences: Iterable[int]) -> None:
        """Drop messages that retention kept only for this reader."""

    def remove(self, sequences: Iterable[int]) -> int:
        """Remove messages; return how many were there."""
