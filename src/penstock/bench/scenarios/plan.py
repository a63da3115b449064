"""What one run is to do, as it is handed to the processes that do it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from penstock.config.setting import setting
from penstock.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run of one scenario: who does how much of what."""

    scenario: str = setting("pubsub", "What to measure; `penstock bench scenarios` lists them.")
    subject: str = setting("penstock.bench", "Subject of the messages.")
    publishers: int = setting(1, "Clients that publish, put or ask.")
    subscribers: int = setting(1, "Clients that receive, consume or answer.")
    messages: int = setting(100_000, "Messages in all, shared out among the publishers.")
    size_bytes: int = setting(128, "Size of a payload.")
    rate: int = setting(0, "Messages per second of all publishers together; 0 is no limit.")
    window: int = setting(1000, "Unacked messages of a JetStream publisher.")
    batch: int = setting(500, "Messages in one JetStream batch, published or pulled.")
    storage: str = setting("file", "Where streams are kept: `file` or `memory`.")
    stall_s: float = setting(10.0, "Time without any progress after which a run is given up.")
    token: str = field(
        default_factory=lambda: secrets.token_hex(4),
        compare=False,
        metadata={"doc": "What makes the names of this run its own."},
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
            raise ConfigError(f"`{self.storage}` is no storage; hint: file or memory")

    def share(self, publisher: int) -> int:
        """Return how many of the messages are one publisher's."""
        each, left = divmod(self.messages, self.publishers)
        return each + (publisher < left)

    @property
    def stream(self) -> str:
        """The stream of a JetStream scenario: no other's, because it is deleted in the end."""
        return f"BENCH_{self.token}"

    @property
    def shape(self) -> str:
        """Publishers, subscribers and size, as people write them."""
        return f"{self.publishers} x {self.subscribers} x {self.size_bytes} B"
