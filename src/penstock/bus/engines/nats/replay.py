"""
Reading a topic again, from any point up to its end.

The end is the last message there was at the beginning. Somebody may delete it, as `dlq
replay` does, or a limit may; so while nothing comes the server is asked whether there is more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import datetime
from typing import Any

from penstock.bus.engine import Delivery, Headers, ReplayFrom
from penstock.bus.engines.nats.layout import topic_of
from penstock.client import JetStream, Message
from penstock.client.jetstream.ordered import OrderedConsumer
from penstock.client.messages import parse_metadata
from penstock.errors import JetStreamError, PenstockError

LOOK_S = 1.0


async def replay_stream(
    jetstream: JetStream, stream: str, subject: str, start: ReplayFrom
) -> AsyncGenerator[list[Delivery], None]:
    """Iterate over the messages stored now, in order."""
    last = await _last_sequence(jetstream, stream, subject, start)
    if not last:
        return
    async with jetstream.ordered_consumer(
        stream, filter_subject=subject, **_policy(start)
    ) as messages:
        position = 0
        looking = asyncio.get_running_loop().create_task(
            _look_for_the_end(
                messages,
                lambda: position,
                lambda: _last_sequence(jetstream, stream, subject, start),
            )
        )
        try:
            async for message in messages:
                delivery = _delivery(message)
                position = delivery.sequence
                yield [delivery]
                if position >= last:
                    return
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)


async def _look_for_the_end(
    messages: OrderedConsumer,
    position: Callable[[], int],
    find_last: Callable[[], Awaitable[int]],
) -> None:
    """Stop reading once nothing comes, and all that is still to come was deleted."""
    while True:
        before = position()
        await asyncio.sleep(LOOK_S)
        if position() != before:
            continue
        try:
            is_over = await find_last() <= before
        except PenstockError:
            continue  # whoever reads learns of it, if it lasts
        if is_over:
            await messages.stop()
            return


async def _last_sequence(jetstream: JetStream, stream: str, subject: str, start: ReplayFrom) -> int:
    """Return the sequence of the last message; 0 if there is none at or after `start`."""
    try:
        last = await jetstream.streams.get(stream, last_by_subj=subject)
    except JetStreamError as error:
        if error.is_not_found:
            return 0
        raise
    if start.sequence is not None and start.sequence > last.sequence:
        return 0
    if start.time is not None and start.time > _time(last.time):
        return 0
    return last.sequence


def stored_ns(text: str) -> int:
    """Return a time of JetStream's in nanoseconds since 1970."""
    return round(_time(text).timestamp() * 1_000_000_000)


def _time(text: str) -> datetime:
    """Read RFC 3339 as JetStream writes it, with up to nine digits of a second."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{(fraction or '0')[:6]:0<6}+00:00")


def _policy(start: ReplayFrom) -> dict[str, Any]:
    if start.sequence is not None:
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": start.sequence}
    if start.time is not None:
        return {"deliver_policy": "by_start_time", "opt_start_time": start.time}
    return {}


class Replayed:
    """The origin of a replayed message."""

    def __init__(self, stream: str) -> None:
        self.stream = stream

    def timestamp_ns(self, handle: bytes) -> int:
        """Return when a message was stored."""
        return parse_metadata(handle).timestamp_ns

    def deliveries(self, handle: bytes) -> int:
        """Return how often a message was delivered, this time included."""
        return parse_metadata(handle).deliveries

    def headers(self, handle: bytes) -> Headers:
        """Return no headers: NATS has them in the block, or there are none."""
        return []


def _delivery(message: Message) -> Delivery:
    metadata = message.metadata
    header_bytes, data = message.operation[4], message.operation[5]
    return Delivery(
        topic_of(message.subject),
        data[header_bytes:],
        data[:header_bytes],
        sequence=metadata.stream_sequence,
        source=Replayed(metadata.stream),
        handle=message.operation[3],
    )
