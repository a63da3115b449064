"""
The durable consumers of one service: one for each pattern it handles, on each stream.

A consumer cannot go back for what it was not asked to read. So a pattern that is new
gets a consumer of its own, which begins with the oldest message; one that is no longer
handled keeps its place until it is handled again, or forgotten. What two of them could
read is read by the narrower: the wider leaves it out. A pattern that is new and within
one that was read before begins where that one stands: `narrowing`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from time import time_ns
from typing import Any, TypeAlias

from penstock.bus.config.nats import ConsumerConfig
from penstock.bus.engines.nats.layout import durable_of, pattern_of
from penstock.bus.engines.nats.replay import stored_ns
from penstock.bus.engines.nats.source import GROUP, IDLE_WAITS_MAX
from penstock.client import JetStream
from penstock.errors import BusError, JetStreamError
from penstock.protocol import subjects

logger = logging.getLogger("penstock.bus")

NANOSECONDS = 1_000_000_000
PIN_TIMEOUT_S = 5.0
"""How long a client that asks no more stays pinned, if nobody unpins it."""

MEMBERS_MAX = 64
"""How many members may have as much as they take, at once; more have less each."""

COUNTING_S = 5.0
"""How long a consumer lives that only counts, if nobody deletes it."""

Narrowing: TypeAlias = Callable[[str, str, str], AbstractAsyncContextManager[int]]
"""
Gives where a pattern begins on a stream that a wider one was reading: the second.

In the end the pattern has its consumer, and the wider one owes nothing of it any more.
"""


class Durables:
    """The durable consumers of a service on the server."""

    def __init__(self, jetstream: JetStream, service: str, config: ConsumerConfig) -> None:
        self._jetstream = jetstream
        self._service = service
        self._config = config

    async def patterns(self, stream: str) -> list[str]:
        """Return what the service reads of a stream, or did before."""
        try:
            names = await self._jetstream.consumers.names(stream)
        except JetStreamError as error:
            if error.is_not_found:
                return []
            raise
        return [one for name in names if (one := pattern_of(self._service, name))]

    async def infos(self, stream: str) -> dict[str, dict[str, Any]]:
        """Return the state of every consumer of the service, by pattern."""
        try:
            infos = await self._jetstream.consumers.list(stream)
        except JetStreamError as error:
            if error.is_not_found:
                return {}
            raise
        pairs = [(pattern_of(self._service, info["name"]), info) for info in infos]
        return {pattern: info for pattern, info in pairs if pattern}

    async def check(self, stream: str, pattern: str) -> list[str]:
        """Return what the service reads of a stream; raise if a pattern cannot be read beside."""
        there = await self.patterns(stream)
        for one in there:
            if (
                subjects.overlap(one.encode(), pattern.encode())
                and not within(one, pattern)
                and not within(pattern, one)
            ):
                raise BusError(
                    f"`{self._service}` has read `{one}`, which shares some topics with "
                    f"`{pattern}` and has others; hint: patterns within `{one}`, or around it, go "
                    f"on where it stands and repeat nothing. Or `await bus.forget({one!r})` on a "
                    "bus of this service without handlers: then everything that is stored of "
                    f"`{pattern}` is handled from the oldest on, also what was handled before"
                )
        return there

    def check_whole(self, pattern: str, there: Iterable[str]) -> None:
        """Raise if a wider pattern reads these topics: it has left out what they had their own."""
        wider = narrowest_around(pattern, there)
        if wider:
            raise BusError(
                f"`{self._service}` reads `{wider}`, of which `{pattern}` is a part that cannot "
                f"be forgotten alone; hint: `await bus.forget({wider!r})` gives up all of it"
            )

    async def ensure(
        self, stream: str, pattern: str, subject: str, narrowing: Narrowing
    ) -> list[str]:
        """Have a pattern read; return all patterns within it that have consumers, itself first."""
        there = await self.check(stream, pattern)
        reading = "" if pattern in there else narrowest_around(pattern, there)
        if reading:
            async with narrowing(stream, reading, pattern) as start:
                await self.make(stream, pattern, subject, start)
        else:
            await self.make(stream, pattern, subject, 1)
        return [pattern, *(one for one in there if one != pattern and within(one, pattern))]

    async def make(self, stream: str, pattern: str, subject: str, start: int) -> None:
        """Have a consumer for a pattern; one that is new begins with message `start`."""
        durable = durable_of(self._service, pattern)
        wanted = self._settings(durable, subject)
        info = await self._info(stream, durable)
        if info is not None and not _has_pins(info):
            # Whether there are pins cannot be changed; what was in flight comes again.
            start = info["ack_floor"]["stream_seq"] + 1
            await self._jetstream.consumers.delete(stream, durable)
            info = None
        if info is None:
            await self._jetstream.consumers.create(stream, **wanted, **_beginning(start))
        elif any(info["config"].get(name) != value for name, value in wanted.items()):
            await self._jetstream.consumers.update(stream, **info["config"] | wanted)

    async def exists(self, stream: str, pattern: str) -> bool:
        """Tell whether a pattern has its consumer."""
        return await self._info(stream, durable_of(self._service, pattern)) is not None

    async def delete(self, stream: str, pattern: str) -> None:
        """Give up a consumer, and where it stands."""
        await self._jetstream.consumers.delete(stream, durable_of(self._service, pattern))

    async def left_to_others(
        self, stream: str, pattern: str, infos: Mapping[str, dict[str, Any]]
    ) -> int:
        """Return how much a consumer has before it that those of narrower patterns read."""
        info = infos[pattern]
        inside = [one for one in infos if one != pattern and within(one, pattern)]
        if not inside or not info["num_pending"]:
            return 0
        # Filters of one consumer may not overlap.
        outermost = [one for one in inside if not narrowest_around(one, inside)]
        try:
            counting = await self._jetstream.consumers.create(
                stream,
                filter_subjects=[infos[one]["config"]["filter_subject"] for one in outermost],
                ack_policy="none",
                mem_storage=True,
                inactive_threshold=round(COUNTING_S * NANOSECONDS),
                **_beginning(info["delivered"]["stream_seq"] + 1),
            )
            await self._jetstream.consumers.delete(stream, counting["name"])
        except JetStreamError as error:
            # Such as a limit on consumers: rather too many than no number at all.
            logger.info("= what others read of `%s` cannot be counted: %s", pattern, error)
            return 0
        return int(counting["num_pending"])

    async def oldest_ns(self, stream: str, info: dict[str, Any]) -> int:
        """Return when the oldest message was stored that a consumer is not done with."""
        try:
            message = await self._jetstream.streams.get(
                stream,
                seq=info["ack_floor"]["stream_seq"] + 1,
                next_by_subj=info["config"]["filter_subject"],
            )
        except JetStreamError as error:
            if not error.is_not_found:
                raise
            return time_ns()
        return stored_ns(message.time)

    def _settings(self, durable: str, subject: str) -> dict[str, Any]:
        config = self._config
        pin_s = PIN_TIMEOUT_S + config.fetch_wait * IDLE_WAITS_MAX
        return {
            "durable_name": durable,
            "filter_subject": subject,
            "ack_policy": "explicit",
            "ack_wait": round(config.ack_wait * NANOSECONDS),
            # The leader bounds what each member has.
            "max_ack_pending": config.max_ack_pending * MEMBERS_MAX,
            "max_waiting": config.max_waiting,
            # Attempts are counted here, where the order of a key is known.
            "max_deliver": -1,
            "priority_policy": "pinned_client",
            "priority_groups": [GROUP],
            "priority_timeout": round(pin_s * NANOSECONDS),
        }

    async def _info(self, stream: str, durable: str) -> dict[str, Any] | None:
        try:
            return await self._jetstream.consumers.info(stream, durable)
        except JetStreamError as error:
            if error.is_not_found:
                return None
            raise


def within(narrow: str, wide: str) -> bool:
    """Tell whether one pattern stands for no topic that the other does not."""
    return subjects.contains(wide.encode(), narrow.encode())


def narrowest_around(pattern: str, patterns: Iterable[str]) -> str:
    """Return which of some patterns reads the topics of another one; empty if none does."""
    wider = [one for one in patterns if one != pattern and within(pattern, one)]
    # None overlaps another in part, so each is within all that are wider than itself.
    return max(wider, key=lambda one: sum(within(one, other) for other in wider), default="")


def _has_pins(info: dict[str, Any]) -> bool:
    return bool(info["config"].get("priority_policy") == "pinned_client")


def _beginning(sequence: int) -> dict[str, Any]:
    if sequence <= 1:
        return {"deliver_policy": "all"}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": sequence}
