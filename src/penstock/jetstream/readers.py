"""The readers for which a stream may have to keep messages: consumers, mirrors and sources."""

from __future__ import annotations

from typing import Protocol


class RetainingReader(Protocol):
    """A reader for which a stream may have to keep messages."""

    def wants(self, subject: bytes) -> bool:
        """Tell whether its filters let messages of this subject through."""

    def needs(self, sequence: int, subject: bytes) -> bool:
        """Tell whether it wants this message and has not settled it yet."""


class Copier(RetainingReader, Protocol):
    """A mirror or a source that reads the stream."""

    def on_messages(self) -> None:
        """Read new messages."""

    def detach(self) -> None:
        """Stop reading: the stream is closed."""
