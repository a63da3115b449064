"""
The seam between the bus and its brokers.

An engine moves bytes: it publishes with an ack, fetches, settles, and knows how a
topic is kept. Envelopes, keys, lanes, retries and dead letters are above it and
the same for all. `Features` lists the capabilities of an engine; the contract
suite in `penstock.bus.contract` judges one.
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
"""The header that carries a consumer's pin: the server serves only the reader that has it."""
BROKER_PREFIX = "nats-"
"""The prefix of headers that instruct the broker or come from it."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """The capabilities of an engine. Code above asks for these, never for the engine's name."""

    persistent: bool
    """Keeps messages until they are settled."""
    ephemeral: bool
    """Delivers messages without storing them, and replies to requests."""
    deduplicates: bool
    """Stores an event id once within a window of time."""
    shares_order: bool
    """Keeps the order of a key when several processes of one service handle at once."""
    by_pattern: bool
    """Knows a service's position for each pattern, and the patterns without a handler."""
    orders_topics: bool
    """Keeps the order of a whole topic, not only that of each key in it."""
    limits_messages: bool
    """Keeps a topic to a number of messages."""
    shares_storage: bool
    """Keeps topics without limits of their own together, in one place made beforehand."""
    delays: bool
    """Delivers a refused message again after a delay."""


class Outgoing:
    """One message on its way out, with the data of the publisher and of the engine."""

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
        """Its ordering key, if that is not its envelope's aggregate."""
        self.block = b""
        """Encoded headers; empty if there are none."""
        self.future: asyncio.Future[bytes] | None = None
        """The future of a publisher that waits; without one, callbacks get the result."""
        self.streams: tuple[ResultStream, ...] = ()
        self.deadline_s = 0.0
        self.is_unstored = False
        """Known not to be stored: not sent yet, or refused for now."""

    @property
    def is_recognisable(self) -> bool:
        """Whether the broker would recognise it when it comes again, by its id."""
        return bool(self.block) and header_block.get(self.block, MESSAGE_ID) is not None


class Settlement(NamedTuple):
    """The result of publishing one message."""

    message: Outgoing
    ack: bytes
    error: Exception | None


OnSettled: TypeAlias = Callable[[list[Settlement]], None]
Sender: TypeAlias = Callable[[Outgoing], bool]


class Receipt(NamedTuple):
    """The broker's confirmation that a message is stored."""

    sequence: int
    duplicate: bool


class Source(Protocol):
    """The origin of an engine's messages."""

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
        "is_revoked",
        "key",
        "payload",
        "sequence",
        "slot",
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
        """The engine's own data to settle it."""
        self.slot = -1
        """The slot of its key, where members of a service share the keys."""
        self.is_aged = False
        """Whether it has been here long enough for its deadline to be put off."""
        self.is_revoked = False
        """Whether it ends here if it fails: others get it then."""
        self.key = ""
        self.attempts = 0
        self.failures: tuple[str, ...] = ()
        self.trace = ""
        """The traceback of the last failure, once the message is given up."""
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
        """Its headers in order. With the broker's own, a copy would pass for the original."""
        return [pair for pair in self._pairs if not pair[0].lower().startswith(BROKER_PREFIX)]

    @property
    def sendable_headers(self) -> Headers:
        """Its headers as a copy can have them, whoever made them."""
        return [(name, _one_line(value)) for name, value in self.headers if is_header_name(name)]

    def header(self, name: str) -> str | None:
        """Return one header, also of the broker."""
        wanted = name.lower()
        return next((value for one, value in self._pairs if one.lower() == wanted), None)

    @property
    def _pairs(self) -> Headers:
        if self.block:
            return header_block.decode(self.block)
        return self.source.headers(self.handle) if self.source is not None else []


def _one_line(value: str) -> str:
    return value.replace("\r", " ").replace("\n", " ")


class Lag(NamedTuple):
    """The messages not yet handled."""

    messages: int
    oldest_ns: int
    """When the oldest of them was stored; 0 if there is none."""
    unhandled: Mapping[str, int] = MappingProxyType({})
    """The number of messages that wait for a removed handler, by its pattern."""


class Membership(NamedTuple):
    """The processes of a service, and the share of the keys of each."""

    me: str = ""
    leader: str = ""
    """The process that reads and hands out; empty where the broker does that."""
    members: Mapping[str, int] = MappingProxyType({})
    """How many slots of the keys each has; partitions, on Kafka."""
    takeovers: int = 0
    """How often this process found another one silent and had it replaced."""


@dataclass(frozen=True, kw_only=True)
class TopicState:
    """A topic as the broker keeps it."""

    options: TopicOptions
    """Its real limits."""
    shared: bool
    """Whether it shares them with the other topics."""
    fixable: frozenset[str] = frozenset(("retention", "max_bytes", "max_msgs"))
    """The settings that can be changed."""
    messages: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplayFrom:
    """The start of a replay. A replay ends at the last message stored when it began."""

    sequence: int | None = None
    time: datetime | None = None

    def __post_init__(self) -> None:
        check_moment("time", self.time)


OnMoving: TypeAlias = Callable[[str, bool], None]
OnLease: TypeAlias = Callable[[float], None]
IsTaken: TypeAlias = Callable[[Delivery], bool]
OnTaken: TypeAlias = Callable[[IsTaken], Collection[Delivery]]
KeyOf: TypeAlias = Callable[[Delivery], str]
LiveReceiver: TypeAlias = Callable[[list[Delivery]], None]
Responder: TypeAlias = Callable[[bytes, Headers], Awaitable[bytes]]


def ignore_settled(settled: list[Settlement]) -> None:
    """Stand in while no publisher listens."""


def ignore_connection(connected: bool, error: Exception | None) -> None:
    """Stand in while there is no listener."""


def ignore_moving(topic: str, is_moving: bool) -> None:
    """Stand in while there is no publisher."""


def ignore_lease(until_s: float) -> None:
    """Stand in while nobody handles anything."""


def ignore_taken(is_taken: IsTaken) -> Collection[Delivery]:
    """Stand in while nobody handles anything."""
    return ()


def no_key(delivery: Delivery) -> str:
    """Stand in while there is no function for ordering keys."""
    return ""


class Engine(Protocol):
    """A broker, as the bus needs it."""

    features: Features
    urls: tuple[str, ...]
    """The addresses of the broker, once connected."""
    on_settled: OnSettled
    """Called with every message that was acked or failed, once, many at a time."""
    on_connection: Callable[[bool, Exception | None], None]
    """Called when the connection is lost and when it is back."""
    on_taken: OnTaken
    """
    Called when another process is to handle some messages, with a test for them.

    Those that are not begun are dropped. Those that run are returned: each is settled once
    it is done, and given back if it fails.
    """

    key_of: KeyOf
    """Returns the ordering key of a message; empty if it has none."""

    on_lease: OnLease
    """
    Called with the time, by `elapsed_s`, until which no other process reads for the service.

    After it, no fetched message may be begun until the next call. Without any call there is
    no such limit.
    """

    on_moving: OnMoving
    """
    Called with a topic before its target changes, and again afterwards.

    In between nothing may be sent to it: messages sent before must be stored first.
    """

    async def connect(self) -> None:
        """Connect, once."""

    async def close(self) -> None:
        """Close. Unacked publishes fail; unsettled messages will be delivered again."""

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached right now."""

    @property
    def is_active(self) -> bool:
        """Whether this process handles events of its service; if not, it is a standby."""

    @property
    def membership(self) -> Membership:
        """The members that share the work of the service, as far as this process knows."""

    @property
    def unhandled(self) -> Sequence[str]:
        """Patterns the service once read and has no handler for now."""

    def target(self, topic: str, *, live: bool = False) -> bytes:
        """Return the target that `send` takes for a topic, without asking the broker."""

    def sender(self) -> Sender:
        """
        Return the function that hands over messages to be stored.

        It never blocks and never drops: `on_settled` gets every message with its
        result. Messages are stored in the order of the calls, also across a lost
        connection. True: the caller should `make_room`.
        """

    def send_live(self, target: bytes, payload: bytes, block: bytes) -> bool:
        """Hand over a message that is neither stored nor acked."""

    async def make_room(self) -> None:
        """Let the loop turn, or wait until fewer bytes are unsent."""

    async def listen(self, patterns: Sequence[str]) -> None:
        """
        Read these topics too, from now on.

        Reading starts at their oldest message, or where the service left off. The processes
        of a service share the topics by key; in an exclusive service the others are standbys.
        """

    def rest(self, pattern: str) -> None:
        """Stop fetching these topics until `listen` names them again."""

    async def forget(self, pattern: str) -> None:
        """Make the service stop reading these topics, and drop its position in them."""

    async def fetch(self, messages_max: int) -> list[Delivery]:
        """
        Return messages as soon as there are any; after a while maybe none.

        Each comes once, and those of a topic come in the order they were stored,
        those that an earlier session left unsettled first.
        """

    def settle(self, deliveries: Collection[Delivery]) -> None:
        """Ack messages. Acks that are lost on the way are sent again."""

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Return messages, to be delivered to the next process that fetches."""

    def owed(self, waiting: Collection[Delivery]) -> Collection[Delivery]:
        """
        Return the messages, of those not begun, that cannot be given back.

        Giving them back would deliver later ones again, which are done or running.
        """

    def extend(self, deliveries: Collection[Delivery]) -> None:
        """Tell the broker that messages are in progress."""

    def retire(self) -> None:
        """Leave all messages from now on to other processes of the service."""

    async def lag(self) -> Lag:
        """Return the backlog of the service."""

    async def inspect(self, topic: str) -> TopicState | None:
        """Return how the broker keeps a topic; None if it does not."""

    async def topics(self) -> dict[str, TopicState]:
        """Return the state of every topic with stored messages, except dead letters."""

    async def create(self, topic: str, options: TopicOptions) -> None:
        """Make the broker keep a topic."""

    async def update(self, topic: str, options: TopicOptions) -> None:
        """Change how the broker keeps a topic."""

    def replay(self, pattern: str, start: ReplayFrom) -> AsyncGenerator[list[Delivery], None]:
        """Read topics again up to their present end. Settles nothing."""

    async def discard(self, topic: str, sequence: int) -> bool:
        """Delete one stored message for good; tell whether it was there."""

    async def count_dead_letters(self) -> int:
        """Return how many dead letters are kept."""

    async def services(self) -> dict[str, Membership]:
        """Return the members of each service of the bus, by its name."""

    async def namespaces(self) -> list[str]:
        """Return the namespaces of all buses on the broker, sorted."""

    def listen_live(self, pattern: str, receive: LiveReceiver) -> Callable[[], None]:
        """Receive live messages; return a function that stops it."""

    async def request(self, topic: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Send a live message and return the first reply."""

    def respond(self, pattern: str, responder: Responder) -> Callable[[], None]:
        """Answer requests; return a function that stops it."""

    async def echo(self, payload: bytes) -> None:
        """Send a payload through the broker, and return once it has come back."""

    @property
    def untold(self) -> int:
        """The number of acks the broker may not have, as far as this process knows."""

    async def flush(self) -> None:
        """Return once the broker has every ack; while it is away, wait for it."""
