"""
One origin of a stream: which messages it wants, their subjects here, and how far it was read.

A follower does the reading: of a stream in this account (`follower`), or of one that only messages
reach (`remotefollower`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import JetStreamError
from penstock.jetstream.store.values import Filters, Message
from penstock.protocol import subjects as patterns
from penstock.protocol.transforms import Transform

if TYPE_CHECKING:
    from penstock.jetstream.copies.streams import Copied

Take = Callable[["Origin", list[Message]], None]
"""
Stores messages of an origin. If it cannot, it raises JetStreamError, and `read_sequence` tells how
far it came.
"""

HASH_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
HASH_LENGTH = 8


class Follower(Protocol):
    """The reader of one of a stream's origins, as the stream sees it."""

    origin: Origin

    @property
    def has_unsafe(self) -> bool:
        """Whether the stream could still lose a message that was read."""

    def open(self) -> None:
        """Begin to read, or continue where this left off. Idempotent."""

    def on_stream(self, stream: Copied) -> None:
        """React to a new stream in this account: it may be the awaited origin."""

    def on_safe(self, visible_sequence: int) -> None:
        """Note that the stream cannot lose its messages up to a sequence any more."""

    def close(self, *, for_good: bool) -> None:
        """Stop reading; `for_good` if the stream will not continue with this origin."""

    def info(self) -> dict[str, Any]:
        """Return the origin for StreamInfo."""


class Origin:
    """The configuration of an origin, and the position up to which it was read."""

    def __init__(self, config: Mapping[str, Any], random: Callable[[], float]) -> None:
        self.config = config
        self.name: str = config["name"]
        self.filters = _filters(config)
        self.read_sequence = 0
        """The last sequence that was handled; 0 before the first."""
        self.safe_sequence = 0
        """The last handled sequence that the stream cannot lose any more."""
        self.identity = ""
        """Identifies the stream: a new one of the same name has another identity."""
        self.label = _label(config)
        self._transforms = [
            Transform(each.get("src", "").encode(), each["dest"].encode(), random)
            for each in config.get("subject_transforms") or ()
            if each.get("dest")
        ]

    def begin_again(self) -> None:
        """Forget the position: the origin is a different stream than before."""
        self.read_sequence = self.safe_sequence = 0

    def wants(self, subject: bytes) -> bool:
        """Tell whether its filters let messages of this subject through."""
        return not self.filters or any(patterns.matches(each, subject) for each in self.filters)

    def target(self, subject: bytes) -> bytes:
        """Return the subject of a message in this stream."""
        for transform in self._transforms:
            target = transform.apply(subject)
            if target is not None:
                return target
        return subject

    def info(
        self, *, lag: int, active_ns: int, is_mirror: bool, error: JetStreamError | None
    ) -> dict[str, Any]:
        """Return the origin for StreamInfo."""
        told: dict[str, Any] = {"name": self.name}
        external = self.config.get("external")
        if external is not None:
            told["external"] = {key: external.get(key, "") for key in ("api", "deliver")}
        told["lag"] = lag
        if self.read_sequence and not is_mirror:
            told["seq"] = self.read_sequence
        told["active"] = active_ns
        if error is not None:
            told["error"] = error.document
        if self.config.get("filter_subject"):
            told["filter_subject"] = self.config["filter_subject"]
        if self.config.get("subject_transforms"):
            told["subject_transforms"] = [
                {"src": each.get("src", ""), "dest": each.get("dest", "")}
                for each in self.config["subject_transforms"]
            ]
        return told


def hashed(text: str) -> str:
    """Return the short name that nats-server makes of a longer one."""
    digest = hashlib.sha256(text.encode()).digest()
    return "".join(HASH_CHARACTERS[byte % len(HASH_CHARACTERS)] for byte in digest[:HASH_LENGTH])


def _filters(config: Mapping[str, Any]) -> Filters:
    if config.get("filter_subject"):
        return (config["filter_subject"].encode(),)
    sources = [each.get("src", "") for each in config.get("subject_transforms") or ()]
    if not all(sources):
        return ()
    return tuple(source.encode() for source in sources)


def _label(config: Mapping[str, Any]) -> tuple[bytes, bytes, bytes]:
    """Return the names of an origin in headers: its name, its filters, their targets."""
    name: str = config["name"]
    if config.get("external") is not None:
        name += ":" + hashed(config["external"].get("api", ""))
    if config.get("consumer") is not None:
        name += ":C=" + hashed(config["consumer"].get("name", ""))
    changes = config.get("subject_transforms") or ()
    filters = "\f".join(each.get("src") or ">" for each in changes)
    targets = "\f".join(each.get("dest") or ">" for each in changes)
    filters = filters or config.get("filter_subject") or ">"
    return name.encode(), filters.encode(), (targets or ">").encode()
