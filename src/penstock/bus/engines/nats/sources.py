"""
The consumers of a service, as one of its processes knows them.

A process remembers the messages of each of them, whether it reads them from the server itself
or another process hands them over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

from penstock.bus.engine import Delivery
from penstock.bus.engines.nats.durables import Durables, within
from penstock.bus.engines.nats.layout import Layout, durable_of, pattern_of
from penstock.bus.engines.nats.narrowing import Done, leave, survey
from penstock.bus.engines.nats.source import Source
from penstock.bus.engines.nats.streams import StreamAdmin
from penstock.errors import ClientError, JetStreamError

logger = logging.getLogger("penstock.bus")

LOOK_S_MAX = 2.0
"""The time limit of a look that keeps everything else waiting."""


class MakeSource(Protocol):
    """Makes the source of a consumer."""

    def __call__(
        self, stream: str, pattern: str, excluded: list[str], *, is_starting: bool = False
    ) -> Source:
        """Return it; it is read as long as this process leads."""


class Sources:
    """The sources of a service, by stream and pattern."""

    def __init__(
        self,
        make: MakeSource,
        durables: Durables,
        admin: StreamAdmin,
        *,
        layout: Layout,
        service: str,
        leads: Callable[[], bool],
    ) -> None:
        self._make = make
        self._durables = durables
        self._admin = admin
        self._layout = layout
        self._service = service
        self._leads = leads
        self._all: dict[tuple[str, str], Source] = {}
        self._led: set[tuple[str, str]] = set()
        """The consumers that this process itself reads from the server."""
        self._done: dict[tuple[str, str], Done] = {}
        """The part of each new pattern that wider consumers have handled."""
        self.followers: set[str] = set()
        """Topics with a stream of their own whose earlier messages may be on the shared one."""

    def __iter__(self) -> Iterator[Source]:
        return iter(list(self._all.values()))

    def get(self, stream: str, pattern: str) -> Source | None:
        """Return the source of a consumer that is known."""
        return self._all.get((stream, pattern))

    def at(self, stream: str, durable: str) -> Source:
        """Return the source that remembers the messages of a consumer."""
        pattern = pattern_of(self._service, durable)
        source = self._all.get((stream, pattern))
        if source is None:
            source = self._all[stream, pattern] = self._make(stream, pattern, [])
            source.follow()
        return source

    async def lead(self, stream: str, pattern: str, others: list[str]) -> None:
        """Read a consumer from the server, except what others of the service read."""
        if (stream, pattern) in self._led:
            return
        source = self.at(stream, durable_of(self._service, pattern))
        source.lead([one for one in others if within(one, pattern)])
        done = self._done.pop((stream, pattern), None)
        if done is not None:
            source.is_done, source.position = done.covers, done.start - 1
        if stream == self._layout.own_stream(pattern):
            self.followers.add(pattern)
        await source.unpin()
        if self._leads():  # else none is read, this one neither
            self._led.add((stream, pattern))

    def sort(self) -> None:
        """Have what the shared stream has come first, also of what was left undone."""
        shared = self._layout.stream
        self._all = dict(sorted(self._all.items(), key=lambda pair: pair[0][0] != shared))

    def unread(self) -> list[Source]:
        """Return the sources that are not read: another release read them so."""
        return [source for key, source in self._all.items() if key not in self._led]

    def forget(self, source: Source) -> None:
        """Remember nothing of a source any more."""
        del self._all[source.stream, source.pattern]
        source.close()

    def follow(self) -> None:
        """Read nothing from the server: another process does."""
        for source in self:
            source.follow()
        self._led.clear()

    def clear(self) -> None:
        """Forget all."""
        self._all.clear()

    async def drop(self, stream: str, pattern: str) -> None:
        """Delete a consumer."""
        self._done.pop((stream, pattern), None)
        self._led.discard((stream, pattern))
        source = self._all.pop((stream, pattern), None)
        if source is not None:
            source.close()
        await self._durables.delete(stream, pattern)

    @asynccontextmanager
    async def narrowing(self, stream: str, wider: str, pattern: str) -> AsyncIterator[int]:
        """Give where a new pattern begins: with the oldest that a wider one has left."""
        source = self._make(stream, wider, [], is_starting=True)
        try:
            done = None
            if (stream, wider) not in self._led:
                await source.unpin()
                done = await survey(source, pattern)
            if done is not None:
                self._done[stream, pattern] = done
            yield (await source.state()).floor + 1 if done is None else done.start
            leave(source, pattern)
        finally:
            source.release()

    async def look_after(self, source: Source) -> None:
        """See whether a consumer that did not answer is still there."""
        stream, pattern = source.stream, source.pattern
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                source.is_doubtful = not await self._durables.exists(stream, pattern)
        except (ClientError, JetStreamError, TimeoutError) as error:
            logger.info("= whether `%s` exists cannot be asked yet: %s", source.durable, error)
            return
        if source.is_doubtful:
            await self._make_again(source)

    async def _make_again(self, source: Source) -> None:
        """Make a consumer that somebody has deleted: it goes on where this process is."""
        stream, pattern = source.stream, source.pattern
        start = source.begin_again()
        logger.warning(
            "! the consumer `%s` of `%s` was deleted; it is made again, and begins with message %d",
            source.durable,
            stream,
            start,
        )
        subject = next(one for at, _, one in self._admin.places(pattern) if at == stream)
        await self._durables.make(stream, pattern, subject, start)
        source.is_doubtful = False

    async def is_next(self, source: Source) -> bool:
        """Tell whether all that comes before a source's messages was handed out."""
        topic = source.pattern
        if topic not in self.followers or source.stream == self._layout.stream:
            return True
        shared = self._layout.stream
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                last = await self._admin.last_sequence(shared, self._layout.subject(topic))
        except (ClientError, JetStreamError, TimeoutError) as error:
            logger.info("= what `%s` has first cannot be asked yet: %s", topic, error)
            return False
        if not last:
            self.followers.discard(topic)
            return True
        return all(
            earlier.position >= last and not earlier.is_stale
            for earlier in self
            if earlier.stream == shared and earlier.reads(topic)
        )


def by_source(deliveries: Collection[Delivery]) -> dict[Source, list[Delivery]]:
    """Return deliveries by the consumer that each came from."""
    found: dict[Source, list[Delivery]] = {}
    for delivery in deliveries:
        if delivery.source is not None:
            found.setdefault(delivery.source, []).append(delivery)
    return found
