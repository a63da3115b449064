"""
Topics: as declared, as the broker keeps them, and the changes in between.

The broker's state counts, never a memory of this process. It is cached, so that
publishing asks the broker nothing.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from penstock.bus.config.bus import BusConfig, TopicOptions
from penstock.bus.engine import Engine, TopicState
from penstock.bus.events.names import check_topic, is_dead
from penstock.errors import BusError, ConnectionLost, RequestTimeout, TopicMismatch

logger = logging.getLogger("penstock.bus")

RETENTION_TOLERANCE_S = 1.0
COMPARED = ("retention", "max_bytes", "max_msgs", "replicas", "partitions", "compression")

PREPARE_ATTEMPTS = 3

SHARED = "_"
"""Stands for any topic without limits of its own."""

Action = Literal["created", "updated", "validated", "skipped", "kept", "ephemeral"]


class Target(NamedTuple):
    """The destination of a topic's messages."""

    address: bytes
    live: bool
    id_block: bytes
    """A header block that lacks only the event id."""
    at_once: bool
    """Whether an event may go without another look at its topic."""


def message_id_on(topic: str, event_id: str) -> str:
    """Return the message id of an event. It names the topic: topics share a stream and its ids."""
    return f"{topic}:{event_id}"


def id_block(topic: str) -> bytes:
    """Return the headers of an event on a topic, with `%b` for its id."""
    return f"NATS/1.0\r\nNats-Msg-Id: {message_id_on(topic, '%b')}\r\n\r\n".encode()


class Drift(NamedTuple):
    """One difference between the declared topic and the broker's."""

    field: str
    expected: Any
    actual: Any
    fixable: bool

    def __str__(self) -> str:
        remedy = "can be updated" if self.fixable else "needs a new topic"
        return f"`{self.field}` is {self.actual!r}, not {self.expected!r} ({remedy})"


@dataclass(frozen=True, kw_only=True)
class TopicReport:
    """The state found on the broker, and the changes made."""

    topic: str
    action: Action
    drifts: tuple[Drift, ...] = ()
    exists: bool = True

    @property
    def in_sync(self) -> bool:
        """Whether the broker has the topic as it was declared."""
        return self.exists and not self.drifts

    def __str__(self) -> str:
        if not self.exists:
            return f"topic `{self.topic}` is not on the broker"
        if not self.drifts:
            return f"topic `{self.topic}` is as declared ({self.action})"
        return f"topic `{self.topic}`: " + "; ".join(map(str, self.drifts))


class Topics:
    """The topics of one bus."""

    def __init__(
        self,
        engine: Engine,
        config: BusConfig,
    ) -> None:
        self.strategy = config.strategy
        self._engine = engine
        self._persistent = engine.features.persistent and config.nats.jetstream.enabled
        self._declared = dict(config.topics)
        self._dead_prefix = config.subscriber.dead_letter_prefix
        self.targets: dict[str, Target] = {}
        """The target of each topic used so far. Looked up for every message."""
        self._is_shared_ready = False
        self._moving: dict[str, asyncio.Event] = {}
        engine.on_moving = self._move

    async def prepare(self, topic: str) -> Target:
        """Return the target of a topic; at its first use, make sure the topic exists."""
        for attempt in range(PREPARE_ATTEMPTS):
            if topic in self._moving:
                await self._moving[topic].wait()
            if topic in self.targets:
                break
            try:
                await self.configure(topic, self._declared.get(topic, TopicOptions()))
            except (RequestTimeout, ConnectionLost):
                # An answer was lost with its connection; asking twice changes nothing.
                if attempt == PREPARE_ATTEMPTS - 1:
                    raise
        return self.targets[topic]

    def check_free(self, topic: str) -> None:
        """Raise if a topic is of dead letters, which only the bus stores."""
        if is_dead(topic, self._dead_prefix):
            raise BusError(
                f"`{topic}` begins with the `dead_letter_prefix`, and only the bus stores dead "
                "letters; hint: another topic, or another `subscriber.dead_letter_prefix`"
            )

    async def prepare_shared(self) -> None:
        """Make sure, once, that there is a stream to subscribe to."""
        shares = self._engine.features.shares_storage
        if self._persistent and shares and not self._is_shared_ready:
            await self._apply(SHARED, TopicOptions())
            self._is_shared_ready = True

    async def configure(self, topic: str, options: TopicOptions) -> TopicReport:
        """Declare a topic and apply the topic strategy to it. Idempotent."""
        check_topic(topic)
        self._declared[topic] = options
        if self._is_live(options):
            self._aim(topic, live=True)
            return TopicReport(topic=topic, action="ephemeral")
        report = await self._apply(topic, options)
        self._aim(topic, live=False)
        if report.drifts and report.action not in ("updated", "skipped"):
            logger.warning("! %s", report)
        return report

    async def check(self, topic: str, options: TopicOptions | None = None) -> TopicReport:
        """Compare a topic with the broker's, and change nothing."""
        wanted = options or self._declared.get(topic, TopicOptions())
        if self._is_live(wanted):
            return TopicReport(topic=topic, action="ephemeral")
        state = await self._engine.inspect(topic)
        # A topic with its own limits does not exist while there is only the shared stream.
        if state is None or (wanted.limits and state.shared):
            return TopicReport(topic=topic, action="validated", exists=False)
        return TopicReport(topic=topic, action="validated", drifts=compare(wanted, state))

    def _move(self, topic: str, is_moving: bool) -> None:
        """Send nothing to a topic while its target changes."""
        if is_moving:
            self.targets.pop(topic, None)
            self._moving[topic] = asyncio.Event()
        else:
            self._moving.pop(topic).set()

    def _aim(self, topic: str, *, live: bool) -> None:
        address = self._engine.target(topic, live=live)
        at_once = not live and not is_dead(topic, self._dead_prefix)
        self.targets[topic] = Target(address, live, id_block(topic), at_once)

    async def _apply(self, topic: str, options: TopicOptions) -> TopicReport:
        if self.strategy == "skip":
            return TopicReport(topic=topic, action="skipped")
        report = await self.check(topic, options)
        if self.strategy == "validate_only":
            if not report.in_sync:
                raise TopicMismatch(report)
            return report
        if not report.exists:
            await self._engine.create(topic, options)
            return TopicReport(topic=topic, action="created")
        if self.strategy == "create_only" or not report.drifts:
            return TopicReport(topic=topic, action="kept", drifts=report.drifts)
        return await self._update(topic, options, report)

    async def _update(self, topic: str, options: TopicOptions, report: TopicReport) -> TopicReport:
        if not all(drift.fixable for drift in report.drifts):
            raise TopicMismatch(report)
        await self._engine.update(topic, options)
        return TopicReport(topic=topic, action="updated", drifts=report.drifts)

    def _is_live(self, options: TopicOptions) -> bool:
        if options.persistence == "persistent":
            if not self._persistent:
                raise BusError("a persistent topic needs JetStream, which is not enabled")
            return False
        is_live = options.persistence == "ephemeral" or not self._persistent
        if is_live and not self._engine.features.ephemeral:
            raise BusError("this engine keeps every topic; hint: a short `retention`")
        return is_live


def compare(wanted: TopicOptions, state: TopicState) -> tuple[Drift, ...]:
    """Return every difference in the declared settings. A setting left out never differs."""
    drifts = []
    # Bytes are split among partitions, perhaps with a remainder.
    tolerances = {"retention": RETENTION_TOLERANCE_S, "max_bytes": state.options.partitions or 0}
    for name in COMPARED:
        expected, actual = getattr(wanted, name), getattr(state.options, name)
        if expected is None or expected == actual:
            continue
        if name in tolerances and actual and abs(expected - actual) <= tolerances[name]:
            continue
        if name == "partitions" and actual is None:
            continue  # a broker without them needs none
        drifts.append(Drift(name, expected, actual, name in state.fixable and not state.shared))
    return tuple(drifts)
