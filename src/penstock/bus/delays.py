"""
Delayed messages: stored now, published when their time has come.

They wait on the broker, on the topic `delayed`, which has a stream of its own. Any
number of processes may run `Delays`; each message is moved by one of them, which
refuses it (`-NAK` with a delay) until it is due. One that dies has lost nothing:
the broker gives the message to another. Moving one twice stores it once.

    async with Delays(bus) as delays:
        await delays.publish("reminders", envelope, delay_s=3600)
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from math import isfinite
from time import time_ns
from typing import Any, NamedTuple

from penstock.bus.bus import EventBus
from penstock.bus.engines.nats.engine import NatsEngine
from penstock.bus.engines.nats.layout import Layout
from penstock.bus.events.envelope import Envelope
from penstock.bus.events.names import check_moment, check_topic
from penstock.bus.operate.failures import STOPS, describe
from penstock.client import JetStream, Message
from penstock.errors import BusError
from penstock.protocol.times import DAY_S

logger = logging.getLogger("penstock.bus")

TOPIC = "delayed"
DURABLE = "delays"
DUE_HEADER = "Delayed-Until"
TOPIC_HEADER = "Delayed-Topic"
EVENT_HEADER = "Delayed-Event"

WAITING_MAX = 1_000_000
"""Messages that may wait at once."""
KEPT_S_MAX = 400 * DAY_S
"""The longest delay of a message."""
ACK_WAIT_S = 5.0
FETCH_MESSAGES = 256
RETRY_WAIT_S = 0.5


class Delays:
    """Publishes later. Use with `async with`, on an open bus."""

    def __init__(self, bus: EventBus) -> None:
        if not (bus.features.delays and isinstance(bus.engine, NatsEngine)):
            raise BusError("this engine keeps no delayed messages; hint: an outbox with `due`")
        self._bus = bus
        self._client = bus.engine.client
        self._stream = Layout(bus.config.namespace).own_stream(TOPIC)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Delays:
        await self._bus.configure_topic(TOPIC, retention=KEPT_S_MAX, max_msgs=WAITING_MAX)
        self._jetstream: JetStream = self._client.jetstream(
            domain=self._bus.config.nats.jetstream.domain
        )
        await self._jetstream.consumers.create_or_update(
            self._stream,
            durable_name=DURABLE,
            ack_policy="explicit",
            ack_wait=timedelta(seconds=ACK_WAIT_S),
            max_ack_pending=WAITING_MAX,
        )
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def publish(
        self,
        topic: str,
        envelope: Envelope[Any],
        *,
        delay_s: float | None = None,
        due: datetime | None = None,
    ) -> None:
        """Publish an event after `delay_s`, or at `due`; return once the broker has it."""
        due_ns = _due_ns(delay_s, due)
        if due_ns - time_ns() > KEPT_S_MAX * 1e9:
            raise BusError(f"a message can wait {KEPT_S_MAX / DAY_S:.0f} days at most")
        await self._bus.publish(
            TOPIC,
            self._bus.codec.encode(envelope),
            headers=[
                (TOPIC_HEADER, check_topic(topic)),
                (DUE_HEADER, str(due_ns)),
                (EVENT_HEADER, envelope.event_id),
            ],
            message_id=f"{topic}:{envelope.event_id}",
        )

    async def _run(self) -> None:
        """Take messages as they come, forever."""
        while True:
            try:
                async with (
                    self._jetstream.pull_consumer(self._stream, DURABLE) as consumer,
                    consumer.consume(batch=FETCH_MESSAGES) as messages,
                ):
                    async for message in messages:
                        await self._move(message)
            except STOPS:
                raise
            except BaseException as error:
                logger.warning("! delayed messages: %s", describe(error))
                await asyncio.sleep(RETRY_WAIT_S)

    async def _move(self, message: Message) -> None:
        """Publish a message that is due; ask for any other again when it is due."""
        waiting = _read(message)
        if waiting is None:
            logger.warning("! `%s` holds a message that is not delayed; it is dropped", TOPIC)
            await message.term("not a delayed message")
            return
        wait_s = (waiting.due_ns - time_ns()) / 1e9
        if wait_s > 0:
            await message.nak(delay_s=wait_s)
            return
        await self._bus.publish(waiting.topic, message.payload, message_id=waiting.event_id)
        # The ack comes last: what is acked does not come again to be deleted.
        await self._bus.engine.discard(TOPIC, message.metadata.stream_sequence)
        await message.ack()


def _due_ns(delay_s: float | None, due: datetime | None) -> int:
    """Return when a message is due, in nanoseconds; either a delay or a time says so."""
    check_moment("due", due)
    if (delay_s is None) == (due is None):
        raise BusError("a delayed message needs `delay_s` or `due`, and not both")
    if due is not None:
        return round(due.timestamp() * 1e9)
    if not isinstance(delay_s, int | float) or not isfinite(delay_s) or delay_s < 0:
        raise BusError(f"`delay_s` must be a number of seconds, 0 or more: {delay_s!r}")
    return time_ns() + round(delay_s * 1e9)


class _Waiting(NamedTuple):
    """Where a delayed message is to go, when, and its event id."""

    topic: str
    due_ns: int
    event_id: str


def _read(message: Message) -> _Waiting | None:
    headers = message.headers
    try:
        return _Waiting(
            check_topic(headers[TOPIC_HEADER]), int(headers[DUE_HEADER]), headers[EVENT_HEADER]
        )
    except (KeyError, ValueError, BusError):
        return None
