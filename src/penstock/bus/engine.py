"""
The seam between the bus and what it runs on.

An engine moves bytes: it publishes with an ack, fetches, settles, and knows how a
topic is kept. Envelopes, keys, lanes, retries and dead letters are above it and
the same for all. `Features` says what an engine does not promise; the contract
suite in `penstock.bus.contract` is what judges one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from penstock.bus.config.bus import TopicOptions
from penstock.bus.events.envelope import Envelope
from penstock.bus.events.names import check_moment, is_header_name
from penstock.bus.results import ResultStream
from penstock.protocol import headers as header_block

Headers: TypeAlias = list[tuple[str, str]]

MESSAGE_ID = b"Nats-Msg-Id"
PIN_ID = "Nats-Pin-Id"
"""What says to a reader, and to nobody else, that it is the one that is served."""
BROKER_PREFIX = "nats-"
"""What headers begin with that say something to the broker, or come from it."""


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
    orders_topics: bool
    """Keeps the order of a whole topic, not only that of each key in it."""
    limits_messages: bool
    """Keeps a topic to a number of messages."""
    shares_storage: bool
    """Keeps topics without limits of their own together, in one place made beforehand."""
    delays: bool
    """Gives a message back after a while, if it is refused until then."""


class Outgoing:
    """One message on its way out: what the publisher knows of it, and what the engine does."""

    __slots__ = (
        "block",
        "deadline_s",
        "envelope",
        "future",
        "is_unstored",
        "key",
        "payload",
        "streams",
        "target",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes,
        envelope: Envelope[Any] | None,
        target: bytes,
        key: str = "",
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.envelope = envelope
        self.target = target
        self.key = key
        """What it keeps its order with, if that is not its envelope's aggregate."""
        self.block = b""
        """Encoded headers; empty if there are none."""
        self.future: asyncio.Future[bytes] | None = None
        """Of a publisher that waits; without one the result is told to callbacks."""
        self.streams: tuple[ResultStream, ...] = ()
        self.deadline_s = 0.0
        self.is_unstored = False
        """Known not to be stored: not sent yet, or refused for now."""

    @property
    def is_recognisable(self) -> bool:
        """Whether the broker would recognise it when it comes again, by its id."""
        return bool(self.block) and header_block.get(self.block, MESSAGE_ID) is not None


class Settlement(NamedTuple):
    """How the publishing of one message ended."""

    message: Outgoing
    ack: bytes
    error: Exception | None


OnSettled: TypeAlias = Callable[[list[Settlement]], None]
Sender: TypeAlias = Callable[[Outgoing], bool]


class Receipt(NamedTuple):
    """The broker's word that a message is stored."""

    sequence: int
    duplicate: bool


class Source(Protocol):
    """Where an engine's messages come from."""

    stream: str

    def timestamp_ns(self, handle: Any) -> int:
        """Return when a message was stored."""

    def deliveries(self, handle: Any) -> int:
        """Return how often a message was delivered, this time included."""

    def headers(self, handle: Any) -> Headers:
        """Return the headers of a message that has no block of them."""


class Delivery:
    """One fetched message, and how far its handling has come."""

    __slots__ = (
        "attempts",
        "block",
        "event",
        "failures",
        "handle",
        "is_aged",
        "key",
        "payload",
        "sequence",
        "source",
        "subscription",
        "topic",
        "trace",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes,
        block: bytes,
        sequence: int = 0,
        source: Any = None,
        handle: Any = b"",
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.block = block
        self.sequence = sequence
        """Grows with every message of a topic; 0 for one that is not stored."""
        self.source: Any = source
        """The `Source` it came from; None for a message that is not stored."""
        self.handle = handle
        """What the engine needs to settle it."""
        self.is_aged = False
        """Whether it has been here long enough for its deadline to be put off."""
        self.key = ""
        self.attempts = 0
        self.failures: tuple[str, ...] = ()
        self.trace = ""
        """Where the last failure came from, once it is given up."""
        self.event: Any
        self.subscription: Any

    @property
    def timestamp_ns(self) -> int:
        """When it was stored; 0 if it is not."""
        return self.source.timestamp_ns(self.handle) if self.source is not None else 0

    @property
    def deliveries(self) -> int:
        """How often it was delivered, this time included."""
        return self.source.deliveries(self.handle) if self.source is not None else 1

    @property
    def headers(self) -> Headers:
        """Every header in order."""
        if self.block:
            pairs = header_block.decode(self.block)
            return [pair for pair in pairs if pair[0] != PIN_ID]
        return self.source.headers(self.handle) if self.source is not None else []

    @property
    def own_headers(self) -> Headers:
        """Those a copy of it keeps: the broker's would have it taken for the message itself."""
        return [
            (name, _one_line(value))
            for name, value in self.headers
            if is_header_name(name) and not name.lower().startswith(BROKER_PREFIX)
        ]

    def header(self, name: str) -> str | None:
        """Return one header."""
        wanted = name.lower()
        return next((value for one, value in self.headers if one.lower() == wanted), None)


def _one_line(value: str) -> str:
    return value.replace("\r", " ").replace("\n", " ")


class Lag(NamedTuple):
    """What is not yet handled."""

    messages: int
    oldest_ns: int
    """When the oldest of them was stored; 0 if there is none."""
    unhandled: Mapping[str, int] = MappingProxyType({})
    """What waits for a handler that is gone, by the pattern it had."""


@dataclass(frozen=True, kw_only=True)
class TopicState:
    """How the broker keeps a topic."""

    options: TopicOptions
    """Its real limits."""
    shared: bool
    """Whether it shares them with the other topics."""
    fixable: frozenset[str] = frozenset(("retention_s", "bytes_max", "messages_max"))
    """What of it can be changed."""
    messages: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplayFrom:
    """Where a replay begins, and where it ends: at what was stored when it began."""

    sequence: int | None = None
    time: datetime | None = None

    def __post_init__(self) -> None:
        check_moment("time", self.time)


OnMoving: TypeAlias = Callable[[str, bool], None]
OnLease: TypeAlias = Callable[[float], None]
OnTaken: TypeAlias = Callable[[Collection[Source]], Awaitable[None]]
LiveReceiver: TypeAlias = Callable[[list[Delivery]], None]
Responder: TypeAlias = Callable[[bytes, Headers], Awaitable[bytes]]


def ignore_settled(settled: list[Settlement]) -> None:
    """Stand in while no publisher listens."""


def ignore_connection(connected: bool, error: Exception | None) -> None:
    """Stand in while nobody wants to know."""


def ignore_moving(topic: str, is_moving: bool) -> None:
    """Stand in while nobody publishes."""


def ignore_lease(until_s: float) -> None:
    """Stand in while nobody handles anything."""


async def ignore_taken(sources: Collection[Source]) -> None:
    """Stand in while nobody handles anything."""


class Engine(Protocol):
    """What the bus needs of a broker."""

    features: Features
    urls: tuple[str, ...]
    """Where the broker is, once connected."""
    on_settled: OnSettled
    """Called with every message that was acked or failed, once, many at a time."""
    on_connection: Callable[[bool, Exception | None], None]
    """Called when the connection is lost and when it is back."""
    on_taken: OnTaken
    """
    Called with sources that another process is about to read.

    Returns once nothing of them is being handled or will be; what was not done with
    by then is delivered there.
    """

    on_lease: OnLease
    """
    Called with the time of `elapsed_s` until which nobody else reads for the service.

    After it nothing that was fetched is begun with, until the next call. Without any
    call there is no such time.
    """

    on_moving: OnMoving
    """
    Called with a topic that will have another target, and again when it has.

    In between nothing may be sent to it: what was sent before is stored first.
    """

    async def connect(self) -> None:
        """Connect, once."""

    async def close(self) -> None:
        """Close; what is unacked fails, what is unsettled will be delivered again."""

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached right now."""

    @property
    def is_active(self) -> bool:
        """Whether this process reads for its service; if not it stands by."""

    @property
    def unhandled(self) -> Sequence[str]:
        """What the service has read before, and has no handler for now."""

    def target(self, topic: str, *, live: bool = False) -> bytes:
        """Return what `send` takes for a topic. Asks the broker nothing."""

    def sender(self) -> Sender:
        """
        Return the function that hands over messages to be stored.

        It never blocks and never drops: `on_settled` gets the message when it is
        over. Messages are stored in the order of the calls, also across a lost
        connection. True: the caller should `make_room`.
        """

    def send_live(self, target: bytes, payload: bytes, block: bytes) -> bool:
        """Hand a message over that nobody keeps and nobody acks."""

    async def make_room(self) -> None:
        """Let the loop turn, or wait until less is unsent."""

    async def listen(self, patterns: Sequence[str]) -> None:
        """
        Read these topics too, from now on.

        From their oldest message, or where the service left off. Of an exclusive
        service one process reads, and the others stand by.
        """

    def rest(self, pattern: str) -> None:
        """Fetch no more of these topics, until they are listened to again."""

    async def forget(self, pattern: str) -> None:
        """Have the service read these topics no more, and give up where it is in them."""

    async def fetch(self, messages_max: int) -> list[Delivery]:
        """
        Return messages as soon as there are any; after a while maybe none.

        Each comes once, and those of a topic come in the order they were stored,
        those that an earlier session left unsettled first.
        """

    def settle(self, deliveries: Collection[Delivery]) -> None:
        """Say that messages are done with. Lost on the way, they are said again."""

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Have messages delivered to whoever fetches next."""

    def owed(self, waiting: Collection[Delivery]) -> Collection[Delivery]:
        """
        Return those of the messages that nobody has begun with which cannot be given back.

        Or later ones, which are done or being done, would be delivered again with them.
        """

    def extend(self, deliveries: Collection[Delivery]) -> None:
        """Say that messages are being worked on."""

    async def lag(self) -> Lag:
        """Return what the service has before it."""

    async def inspect(self, topic: str) -> TopicState | None:
        """Return how the broker keeps a topic; None if it does not."""

    async def create(self, topic: str, options: TopicOptions) -> None:
        """Make the broker keep a topic."""

    async def update(self, topic: str, options: TopicOptions) -> None:
        """Change how the broker keeps a topic."""

    def replay(self, pattern: str, start: ReplayFrom) -> AsyncGenerator[list[Delivery], None]:
        """Read topics again up to their end as it is now. Settles nothing."""

    async def discard(self, topic: str, sequence: int) -> bool:
        """Delete one stored message for good; tell whether it was there."""

    async def count_dead_letters(self) -> int:
        """Return how many dead letters are kept; 0 if the broker does not count them."""

    async def namespaces(self) -> list[str]:
        """Return the namespaces of all buses on the broker, sorted."""

    def listen_live(self, pattern: str, receive: LiveReceiver) -> Callable[[], None]:
        """Receive what is sent live; return how to stop."""

    async def request(self, topic: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Send live and return the first reply."""

    def respond(self, pattern: str, responder: Responder) -> Callable[[], None]:
        """Answer requests; return how to stop."""

    async def echo(self, payload: bytes) -> None:
        """Send something to the broker, and return once it has come back."""

    @property
    def untold(self) -> int:
        """How many messages are settled of which the broker has not heard, as far as is known."""

    async def flush(self) -> None:
        """Return once the broker has all that was said; while it is away, that is later."""
