"""
The seam between the bus and what it runs on.

An engine moves bytes: it publishes with an ack, fetches, settles, and knows how a
topic is kept. Envelopes, keys, lanes, retries and dead letters are above it and
the same for all. `Features` says what an engine does not promise; the contract
suite in `penstock.bus.contract` is what judges one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeAlias

from penstock import headers as header_block
from penstock.bus.config import TopicOptions

Headers: TypeAlias = list[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Features:
    """What an engine can do. Everything above it asks here, never for the engine's name."""

    persistent: bool
    """Keeps messages until they are settled."""
    ephemeral: bool
    """Delivers messages that nobody keeps, and replies to requests."""
    deduplicates: bool
    """Stores an event id once within a window of time."""
    shares_order: bool
    """Keeps the order of a key when several processes of one service read at once."""
    replays_by_time: bool
    """Reads a topic again from a moment on."""


class Settlement(NamedTuple):
    """How the publishing of one message ended."""

    record: Any
    """What the publisher handed over with the message."""
    ack: bytes
    error: Exception | None


OnSettled: TypeAlias = Callable[[list[Settlement]], None]


class Receipt(NamedTuple):
    """The broker's word that a message is stored."""

    sequence: int
    duplicate: bool


class Delivery:
    """One fetched message, and how far its handling has come."""

    __slots__ = (
        "attempts",
        "block",
        "deliveries",
        "event",
        "extended_s",
        "failures",
        "handle",
        "key",
        "payload",
        "sequence",
        "source",
        "subscription",
        "timestamp_ns",
        "topic",
    )

    def __init__(self, topic: str, payload: bytes, block: bytes, sequence: int) -> None:
        self.topic = topic
        self.payload = payload
        self.block = block
        self.sequence = sequence
        """Grows with every message of a topic; 0 for one that is not stored."""
        self.timestamp_ns = 0
        self.deliveries = 1
        self.source: Any = None
        self.handle = b""
        """What the engine needs to settle it."""
        self.extended_s = 0.0
        """When its deadline was last put off."""
        self.key = ""
        self.event: Any = None
        self.subscription: Any = None
        self.attempts = 0
        self.failures: list[str] = []

    @property
    def headers(self) -> Headers:
        """Every header in order."""
        return header_block.decode(self.block) if self.block else []

    def header(self, name: str) -> str | None:
        """Return one header."""
        value = header_block.get(self.block, name.encode()) if self.block else None
        return None if value is None else value.decode(errors="replace")


class Lag(NamedTuple):
    """What is not yet handled."""

    messages: int
    oldest_ns: int
    """When the oldest of them was stored; 0 if there is none."""


@dataclass(frozen=True, kw_only=True)
class TopicState:
    """How the broker keeps a topic."""

    options: TopicOptions
    """Its real limits."""
    shared: bool
    """Whether it shares them with the other topics."""
    messages: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplayFrom:
    """Where a replay begins, and where it ends: at what was stored when it began."""

    sequence: int | None = None
    time: datetime | None = None


LiveReceiver: TypeAlias = Callable[[list[Delivery]], None]
Responder: TypeAlias = Callable[[bytes, Headers], Awaitable[bytes]]


class Engine(Protocol):
    """What the bus needs of a broker."""

    features: Features
    urls: tuple[str, ...]
    """Where the broker is, once connected."""
    on_settled: OnSettled
    """Called with every message that was acked or failed, once, many at a time."""
    on_connection: Callable[[bool, Exception | None], None]
    """Called when the connection is lost and when it is back."""

    async def connect(self) -> None:
        """Connect, once."""

    async def close(self) -> None:
        """Close; what is unacked fails, what is unsettled will be delivered again."""

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached right now."""

    def target(self, topic: str, *, live: bool = False) -> bytes:
        """Return what `send` takes for a topic. Asks the broker nothing."""

    def send(self, target: bytes, payload: bytes, block: bytes, record: Any) -> bool:
        """
        Hand a message over, to be stored.

        Never blocks and never drops: `on_settled` gets `record` when it is over.
        Messages are stored in the order of the calls, also across a lost
        connection. `block` are encoded headers with the event id, or empty.
        True: the caller should `make_room`.
        """

    def send_live(self, target: bytes, payload: bytes, block: bytes) -> bool:
        """Hand a message over that nobody keeps and nobody acks."""

    async def make_room(self) -> None:
        """Let the loop turn, or wait until less is unsent."""

    async def listen(self, patterns: Sequence[str]) -> None:
        """Read these topics too, from now on, with the one durable consumer."""

    async def forget(self, pattern: str) -> None:
        """Have the durable consumer read these topics no more."""

    async def fetch(self, messages_max: int) -> list[Delivery]:
        """
        Return messages as soon as there are any; after a while maybe none.

        Each comes once, and those of a topic come in the order they were stored,
        those that an earlier session left unsettled first.
        """

    def settle(self, deliveries: Iterable[Delivery]) -> None:
        """Say that messages are done with. Lost on the way, they are said again."""

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Have messages delivered to whoever fetches next."""

    def extend(self, deliveries: Iterable[Delivery]) -> None:
        """Say that messages are being worked on."""

    async def lag(self) -> Lag:
        """Return what the durable consumer has before it."""

    async def inspect(self, topic: str) -> TopicState | None:
        """Return how the broker keeps a topic; None if it does not."""

    async def create(self, topic: str, options: TopicOptions) -> None:
        """Make the broker keep a topic."""

    async def update(self, topic: str, options: TopicOptions) -> None:
        """Change how the broker keeps a topic."""

    def replay(self, topic: str, start: ReplayFrom) -> AsyncIterator[list[Delivery]]:
        """Read a topic again up to its end as it is now. Settles nothing."""

    def listen_live(self, pattern: str, receive: LiveReceiver) -> Callable[[], None]:
        """Receive what is sent live; return how to stop."""

    async def request(self, topic: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Send live and return the first reply."""

    def respond(self, pattern: str, responder: Responder) -> Callable[[], None]:
        """Answer requests; return how to stop."""

    async def flush(self) -> None:
        """Return once the broker has seen all that was sent."""
