"""The plan of one run, as passed to its processes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Literal

from penstock.config.setting import setting
from penstock.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run of one scenario: the clients on each side, and their work."""

    scenario: str = setting("pubsub", "Scenario to run; `penstock bench scenarios` lists them.")
    subject: str = setting("penstock.bench", "Subject of the messages.")
    publishers: int = setting(1, "Clients that publish, put or request.")
    subscribers: int = setting(1, "Clients that receive, consume or reply.")
    messages: int = setting(100_000, "Total messages, divided among the publishers.")
    size_bytes: int = setting(128, "Size of a payload.")
    rate: int = setting(0, "Total messages per second of all publishers; 0 is no limit.")
    window: int = setting(1000, "Unacked messages of a JetStream publisher.")
    batch: int = setting(500, "Messages in one JetStream batch, published or pulled.")
    storage: Literal["file", "memory"] = setting(
        "file", "Storage of the streams: `file` or `memory`."
    )
    stall_s: float = setting(10.0, "Time without progress before a run is aborted.")
    token: str = field(
        default_factory=lambda: secrets.token_hex(4),
        compare=False,
        metadata={"doc": "Suffix that makes the names of this run unique."},
    )

    def __post_init__(self) -> None:
        for name in ("messages", "window", "batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be positive: {getattr(self, name)}")
        for name in ("publishers", "subscribers", "size_bytes", "rate"):
            if getattr(self, name) < 0:
                raise ConfigError(f"`{name}` cannot be negative: {getattr(self, name)}")
        if self.publishers > self.messages:
            raise ConfigError(f"{self.messages} messages are too few for {self.publishers} clients")
        if self.storage not in ("file", "memory"):
            raise ConfigError(f"`{self.storage}` is not a storage type; hint: file or memory")

    def share(self, publisher: int) -> int:
        """Return the number of messages for one publisher."""
        each, left = divmod(self.messages, self.publishers)
        return each + (publisher < left)

    @property
    def stream(self) -> str:
        """
        The stream of a JetStream scenario; its name is unique, because it is deleted at the
        end.
        """
        return f"BENCH_{self.token}"

    @property
    def shape(self) -> str:
        """Publishers, subscribers and size, as text."""
        return f"{self.publishers} x {self.subscribers} x {self.size_bytes} B"
