"""The stream that messages are stored into, as its intake sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.jetstream.answers import Answers
    from penstock.jetstream.config.stream import StreamConfig
    from penstock.jetstream.context import Context
    from penstock.jetstream.readers import RetainingReader
    from penstock.jetstream.store.store import Store


class PublishTarget(Protocol):
    """A stream: its configuration, its store, its answers, and the removal of messages."""

    config: StreamConfig
    is_closed: bool
    last_time_ns: int
    """The time of the newest message."""

    @property
    def context(self) -> Context:
        """The context of the account's streams."""

    @property
    def store(self) -> Store:
        """The messages."""

    @property
    def answers(self) -> Answers:
        """The answers the stream owes to publishers."""

    @property
    def is_failing(self) -> bool:
        """Whether nothing may be removed for now, because the disk has failed."""

    @property
    def readers(self) -> list[RetainingReader]:
        """All readers for which messages are kept."""

    def touch(self) -> None:
        """Make the next commit include the changes of the stream."""

    def remove(self, sequences: Iterable[int]) -> int:
        """Remove messages, now or once the disk works again; return how many existed."""

    def purge(self, pattern: bytes, *, before: int = 0) -> int:
        """Remove the messages that match; return how many."""

    def roll_up(self, previous: int) -> None:
        """Remove the one message that a subject had before its newest."""
