"""
What a service reads: its durable consumers on every stream, in one process at a time.

Of the processes of an exclusive service one has the lease, and it alone makes consumers
and asks for messages. Who gets the lease unpins every consumer, so that nobody else is
served, and has what was left undone sent again before anything new: `source`.

A topic that got a stream of its own goes on there. What the shared stream has of it
comes first, so its own stream waits until all of that was handed out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from itertools import chain
from math import inf
from time import monotonic
from typing import Any

from penstock.bus.config.bus import BusConfig
from penstock.bus.engine import Delivery, Lag, OnLease
from penstock.bus.engines.nats.durables import Durables, narrowest_around, within
from penstock.bus.engines.nats.layout import Layout, durable_of
from penstock.bus.engines.nats.lease import RETRY_S, Lease
from penstock.bus.engines.nats.narrowing import Done, survey
from penstock.bus.engines.nats.source import Source
from penstock.bus.engines.nats.streams import StreamAdmin
from penstock.client import Client, JetStream
from penstock.errors import BusError, ClientError, JetStreamError

logger = logging.getLogger("penstock.bus")

STANDBY_LOOK_S = 0.5
"""How often a standby looks, if it hears nothing."""
QUIET_SHARE = 8
"""What part of the room is asked for, at most, of all topics together that are quiet."""
UNHANDLED_TOLD_S = 5.0
"""How long after the start handlers may still be registered without a warning."""


class Reader:
    """The reading side of a bus on NATS."""

    def __init__(
        self,
        client: Client,
        jetstream: JetStream,
        admin: StreamAdmin,
        *,
        config: BusConfig,
        holder: str,
        on_taken: Callable[[Collection[Source]], Awaitable[None]],
        on_lease: OnLease,
    ) -> None:
        self._client = client
        self._jetstream = jetstream
        self._admin = admin
        self._service = config.service
        self._config = config.nats.jetstream.consumer
        self._on_taken = on_taken
        self._on_lease = on_lease
        self._layout = Layout(config.namespace)
        self._durables = Durables(jetstream, config.service, self._config)
        self._patterns: list[str] = []
        self._sources: dict[tuple[str, str], Source] = {}
        self._done: dict[tuple[str, str], Done] = {}
        """What wider consumers have handled of patterns that are new."""
        self._followers: set[str] = set()
        """Topics of which the shared stream may have messages that come before their own's."""
        self._changing = asyncio.Lock()
        self._arrived = asyncio.Event()
        self._holder = holder
        self._lease: Lease | None = None
        self._is_reading = False
        self._standing_by: asyncio.Task[None] | None = None
        self._left: list[str] = []
        """What the service had consumers for before this process."""
        self._told_s = inf

    @property
    def is_active(self) -> bool:
        """Whether this process is the one that reads."""
        return self._is_reading

    @property
    def unhandled(self) -> tuple[str, ...]:
        """What the service has read before, and has no handler for now."""
        return tuple(one for one in self._left if not self._is_wanted(one))

    async def listen(self, patterns: Collection[str]) -> None:
        """Read these topics too: now, or once this process is the one that reads."""
        async with self._changing:
            new = [one for one in patterns if one not in self._patterns]
            self._patterns += new
            try:
                if not self._is_reading:
                    await self._start()
                else:
                    await self._read(new)
            except BaseException:
                self._patterns = [one for one in self._patterns if one not in new]
                raise
        for source in self._sources.values():
            source.is_resting = source.is_resting and not self._is_wanted(source.pattern)
        self._arrived.set()

    def rest(self, pattern: str) -> None:
        """Ask for no more of these topics, until they are listened to again."""
        self._patterns = [one for one in self._patterns if one != pattern]
        self._left = [*self._left, pattern]
        for source in self._sources.values():
            source.is_resting = source.is_resting or within(source.pattern, pattern)

    async def refresh(self) -> None:
        """Read streams that topics of ours have got since."""
        async with self._changing:
            if self._is_reading:
                await self._read(self._patterns)

    async def forget(self, pattern: str) -> None:
        """Have the service read these topics no more, and give up where it stands in them."""
        streams = dict.fromkeys(stream for stream, _, _ in self._admin.places(pattern))
        async with self._changing, self._alone():
            there = {stream: await self._durables.patterns(stream) for stream in streams}
            self._check_whole(pattern, chain.from_iterable(there.values()))
            self._patterns = [one for one in self._patterns if one != pattern]
            for stream, patterns in there.items():
                for one in patterns:
                    if within(one, pattern) and not self._is_wanted(one):
                        await self._drop(stream, one)
            self._left = [one for one in self._left if not within(one, pattern)]

    async def fetch(self, messages_max: int) -> list[Delivery]:
        """Return messages as soon as there are any; after a while maybe none."""
        self._arrived.clear()
        if not self._patterns:
            await self._wait()
            return []
        if not await self._may_read():
            return []
        self._tell_unhandled()
        sources = list(self._sources.values())
        for source in sources if self._client.connected else ():
            if source.is_stale and not source.is_resting and await self._is_next(source):
                found = await source.recover()
                if found:
                    return found
        self._ask(sources, messages_max)
        deliveries = await self._take(sources)
        if not deliveries:
            await self._wait()
            deliveries = await self._take(sources) if self._is_ours() else []
        return deliveries

    def settle(self, deliveries: Collection[Delivery]) -> None:
        """Ack messages."""
        for source, own in _by_source(deliveries).items():
            source.settle(own)

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Have messages delivered again, in order."""
        for source, own in _by_source(deliveries).items():
            source.give_back(own)

    def extend(self, deliveries: Collection[Delivery]) -> None:
        """Restart the ack wait of messages."""
        for source, own in _by_source(deliveries).items():
            source.extend(own)

    @property
    def untold(self) -> int:
        """How many acks have not reached the server, as far as is known."""
        return sum(source.untold for source in self._sources.values())

    async def tell(self) -> None:
        """Return once every ack has reached the server; send again what a lost connection took."""
        while waiting := [one for one in self._sources.values() if one.has_to_tell]:
            try:
                for source in waiting:
                    await source.tell()
            except (ClientError, JetStreamError) as error:
                logger.info("= acks are not heard yet: %s", error)
                await asyncio.sleep(RETRY_S)

    async def lag(self) -> Lag:
        """Return what the service has before it, whichever of its processes reads."""
        messages, oldest_ns = 0, 0
        unhandled: dict[str, int] = {}
        for stream in self._streams():
            for pattern, info in (await self._durables.infos(stream)).items():
                left = info["num_pending"] + info["num_ack_pending"]
                if not self._is_wanted(pattern):
                    unhandled[pattern] = unhandled.get(pattern, 0) + left
                    continue
                messages += left
                if left:
                    one_ns = await self._oldest_ns(stream, pattern, info)
                    oldest_ns = min(filter(None, (oldest_ns, one_ns)), default=0)
        return Lag(messages, oldest_ns, unhandled)

    async def close(self) -> None:
        """Leave, so that another process can go on."""
        if self._standing_by is not None:
            await self._standing_by
        for source in self._sources.values():
            source.release()
        self._sources.clear()
        self._is_reading = False
        if self._lease is not None:
            await self._lease.close()

    async def _start(self) -> None:
        """Read, if this process may."""
        await self._admin.ensure_dead_letters()
        if self._config.exclusive:
            if self._lease is None:
                self._lease = await self._new_lease(self._lost)
            if not self._lease.is_held and not await self._lease.acquire():
                return
        await self._read(self._patterns)
        self._is_reading = True
        await self._find_left()

    async def _new_lease(self, lost: Callable[[], None]) -> Lease:
        await self._admin.ensure_leases()
        return Lease(
            self._client,
            self._jetstream,
            subject=self._layout.lease_subject(self._service),
            holder=self._holder,
            takeover_s=self._config.takeover_s,
            lost=lost,
            relied=self._on_lease,
        )

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Have no other process of the service read meanwhile; raise if one does."""
        if not self._config.exclusive or (self._lease is not None and self._lease.is_held):
            yield
            return
        lease = await self._new_lease(_nothing)
        try:
            await self._take_for_a_moment(lease)
            yield
        finally:
            await lease.close()

    async def _take_for_a_moment(self, lease: Lease) -> None:
        deadline_s = monotonic() + self._config.takeover_s + STANDBY_LOOK_S
        while not await lease.acquire():
            if monotonic() > deadline_s:
                raise BusError(
                    f"{lease.seen_holder or 'another process'} reads for `{self._service}`, and "
                    "what it reads cannot be forgotten behind its back; hint: call `forget` "
                    "there, or stop it first"
                )
            await lease.news(STANDBY_LOOK_S)

    def _check_whole(self, pattern: str, there: Iterable[str]) -> None:
        """Raise if a wider pattern reads these topics: it has left out what they had their own."""
        wider = narrowest_around(pattern, there)
        if wider:
            raise BusError(
                f"`{self._service}` reads `{wider}`, of which `{pattern}` is a part that cannot "
                f"be forgotten alone; hint: `await bus.forget({wider!r})` gives up all of it"
            )

    async def _may_read(self) -> bool:
        """Tell whether this process reads; become the one that does when it is its turn."""
        if self._standing_by is not None:
            await self._standing_by
            self._standing_by = None
        lease = self._lease
        if lease is not None and lease.is_held and not lease.is_fresh:
            # Nobody can be reached. Whoever comes first when the server is back has it.
            await self._wait()
            return False
        if not self._is_reading:
            await self._try_to_read()
        return self._is_reading

    async def _try_to_read(self) -> None:
        async with self._changing:
            if not self._is_reading:
                await self._start()
        if not self._is_reading and self._lease is not None:
            await self._lease.news(STANDBY_LOOK_S)

    def _lost(self) -> None:
        """Another process reads now."""
        self._is_reading = False
        self._standing_by = asyncio.get_running_loop().create_task(self._stand_by())
        self._arrived.set()

    async def _stand_by(self) -> None:
        """Let go of everything that came from the server."""
        sources = list(self._sources.values())
        await self._on_taken(sources)
        for source in sources:
            source.close()
        self._sources.clear()

    async def _read(self, patterns: Collection[str]) -> None:
        """Have a source for every consumer that these topics come from."""
        for pattern in patterns:
            for stream, own, subject in self._admin.places(pattern):
                there = await self._durables.ensure(stream, own, subject, self._find_start)
                for one in there:
                    await self._add(stream, one, [narrow for narrow in there if narrow != one])
        # What the shared stream has comes first, also of what was left undone.
        self._sources = dict(
            sorted(self._sources.items(), key=lambda pair: pair[0][0] != self._layout.stream)
        )

    async def _add(self, stream: str, pattern: str, others: list[str]) -> None:
        if (stream, pattern) in self._sources:
            return
        excluded = [one for one in others if within(one, pattern)]
        source = self._source(stream, pattern, excluded, self._is_ours)
        done = self._done.pop((stream, pattern), None)
        if done is not None:
            source.is_done, source.position = done.covers, done.start - 1
        self._sources[stream, pattern] = source
        if stream == self._layout.own_stream(pattern):
            self._followers.add(pattern)
        if self._config.exclusive:
            await source.unpin()

    def _source(
        self, stream: str, pattern: str, excluded: list[str], is_ours: Callable[[], bool]
    ) -> Source:
        return Source(
            self._client,
            self._jetstream,
            stream=stream,
            durable=durable_of(self._service, pattern),
            pattern=pattern,
            config=self._config,
            arrived=self._arrived,
            is_ours=is_ours,
            excluded=excluded,
        )

    async def _find_start(self, stream: str, wider: str, pattern: str) -> int:
        """Return where a new pattern begins: with the oldest that a wider one has left."""
        source = self._source(stream, wider, [], self._is_leased)
        if self._config.exclusive and (stream, wider) not in self._sources:
            await source.unpin()
            done = await survey(source, pattern)
            if done is not None:
                self._done[stream, pattern] = done
                return done.start
        else:
            source.close()
        return (await source.state()).floor + 1

    async def _drop(self, stream: str, pattern: str) -> None:
        self._done.pop((stream, pattern), None)
        source = self._sources.pop((stream, pattern), None)
        if source is not None:
            source.close()
        await self._durables.delete(stream, pattern)

    async def _find_left(self) -> None:
        found: dict[str, None] = {}
        for stream in self._streams():
            found |= dict.fromkeys(await self._durables.patterns(stream))
        self._left = list(found)
        self._told_s = monotonic() + UNHANDLED_TOLD_S

    def _tell_unhandled(self) -> None:
        """Say what nobody handles any more, once all handlers must be there."""
        if monotonic() < self._told_s:
            return
        self._told_s = inf
        for pattern in self.unhandled:
            logger.warning(
                "! `%s` has no handler any more, its messages wait; hint: subscribe to it, "
                "or `await bus.forget(%r)`",
                pattern,
                pattern,
            )

    def _ask(self, sources: list[Source], messages_max: int) -> None:
        """Ask for what there is room for: a little of what is quiet, the rest of what is not."""
        free = messages_max - sum(source.requested for source in sources)
        asking = [source for source in sources if source.can_ask]
        busy = [source for source in asking if source.is_busy] or asking
        little = max(1, free // (QUIET_SHARE * len(sources)))
        for source in asking:
            if source not in busy:
                source.ask(little)
                free -= little
        for source in busy:
            source.ask(max(1, free // len(busy)))

    async def _take(self, sources: list[Source]) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for source in sources:
            if source.has_arrived and await self._is_next(source):
                deliveries += source.take()
        if self._admin.own_topics:
            # Some publisher has not heard yet that the topic has a stream of its own.
            self._followers |= self._admin.own_topics & {
                delivery.topic
                for delivery in deliveries
                if delivery.source.stream == self._layout.stream
            }
        return deliveries

    async def _is_next(self, source: Source) -> bool:
        """Tell whether all that comes before a source's messages was handed out."""
        topic = source.pattern
        if topic not in self._followers or source.stream == self._layout.stream:
            return True
        shared = self._layout.stream
        last = await self._admin.last_sequence(shared, self._layout.subject(topic))
        if not last:
            self._followers.discard(topic)
            return True
        return all(
            earlier.position >= last and not earlier.is_stale
            for earlier in self._sources.values()
            if earlier.stream == shared and earlier.reads(topic)
        )

    def _streams(self) -> list[str]:
        """Return every stream that the service may have consumers on."""
        return list(dict.fromkeys(stream for stream, _, _ in self._admin.places(">")))

    def _is_wanted(self, pattern: str) -> bool:
        return any(within(pattern, one) for one in self._patterns)

    def _is_ours(self) -> bool:
        return self._is_reading and self._is_leased()

    def _is_leased(self) -> bool:
        return self._lease is None or self._lease.is_fresh

    async def _oldest_ns(self, stream: str, pattern: str, info: dict[str, Any]) -> int:
        source = self._sources.get((stream, pattern))
        if source is not None and source.held:
            return min(delivery.timestamp_ns for delivery in source.held.values())
        return await self._durables.oldest_ns(stream, info)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._config.fetch_wait_s):
                await self._arrived.wait()
        except TimeoutError:
            return


def _nothing() -> None:
    """Stand in for what is done when a lease is lost, where nothing was read."""


def _by_source(deliveries: Collection[Delivery]) -> dict[Source, list[Delivery]]:
    found: dict[Source, list[Delivery]] = {}
    for delivery in deliveries:
        if delivery.source is not None:
            found.setdefault(delivery.source, []).append(delivery)
    return found
