"""The two sides of a copy: the stream that copies, and the stream that is copied from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.jetstream.config.stream import StreamConfig
    from penstock.jetstream.context import Context
    from penstock.jetstream.intake.publish import Intake
    from penstock.jetstream.readers import Copier, RetainingReader
    from penstock.jetstream.store.store import Store


class Copying(Protocol):
    """A stream with a mirror or sources, as its followers see it."""

    config: StreamConfig
    is_closed: bool
    is_dropped: bool
    """Whether its account no longer has it."""
    visible_sequence: int
    """The last message that would survive a power cut."""

    @property
    def name(self) -> str:
        """The name of the stream."""

    @property
    def identity(self) -> str:
        """Tells the stream from an earlier one of the same name."""

    @property
    def context(self) -> Context:
        """The context of the account's streams."""

    @property
    def store(self) -> Store:
        """The messages."""

    @property
    def intake(self) -> Intake:
        """Stores messages as the configuration says."""

    def touch(self) -> None:
        """Make the next commit include the changes of the stream."""


class Copied(Protocol):
    """A stream of the same account that a follower reads."""

    config: StreamConfig
    visible_sequence: int
    """The last message that may be read."""

    @property
    def name(self) -> str:
        """The name of the stream."""

    @property
    def identity(self) -> str:
        """Tells the stream from an earlier one of the same name."""

    @property
    def context(self) -> Context:
        """The context of the account's streams."""

    @property
    def store(self) -> Store:
        """The messages."""

    def touch(self) -> None:
        """Make the next commit include the changes of the stream."""

    def add_copier(self, copier: Copier) -> None:
        """Keep messages for a reader, and notify it of new ones."""

    def remove_copier(self, copier: Copier) -> None:
        """Forget a reader."""

    def on_acked(self, reader: RetainingReader, sequences: Iterable[int]) -> None:
        """Drop messages that retention kept only for this reader."""
