"""
The reader of a service: its durable consumers on every stream, in one process at a time.

One process of a service has the lease and leads. It alone creates consumers and asks for
messages. A new leader unpins every consumer, so that the server serves no other process, and
has unfinished messages sent again before new ones: `source`. All members of the service
handle the messages: `members.group`.

A topic that got a stream of its own continues there. The topic's messages on the shared
stream come first, so its own stream waits until all of them are handed out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import chain
from time import monotonic
from typing import Any

from penstock.bus.config.bus import BusConfig
from penstock.bus.elapsed import elapsed_s
from penstock.bus.engine import Delivery, IsTaken, KeyOf, Lag, Membership, OnLease, OnTaken
from penstock.bus.engines.nats.acks import place_of
from penstock.bus.engines.nats.durables import Durables, within
from penstock.bus.engines.nats.lag import Left, lag_of
from penstock.bus.engines.nats.layout import Layout, durable_of
from penstock.bus.engines.nats.lease import RETRY_S, Lease, Written
from penstock.bus.engines.nats.members.group import Group
from penstock.bus.engines.nats.members.post import Post
from penstock.bus.engines.nats.members.words import Handed
from penstock.bus.engines.nats.source import Source
from penstock.bus.engines.nats.sources import Sources, by_source
from penstock.bus.engines.nats.streams import StreamAdmin
from penstock.bus.operate.failures import STOPS
from penstock.client import Client, JetStream
from penstock.errors import BusError, ClientError, JetStreamError, PenstockError
from penstock.hot.wire import Op

logger = logging.getLogger("penstock.bus")

STANDBY_LOOK_S = 0.5
"""How often a standby looks, if it hears nothing."""
QUIET_SHARE = 8
"""All quiet topics together are asked for at most this fraction (1/n) of the room."""
LEAVING_LOOK_S = 0.02


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
        on_taken: OnTaken,
        on_lease: OnLease,
        key_of: KeyOf,
    ) -> None:
        self._client = client
        self._jetstream = jetstream
        self._admin = admin
        self._service = config.service
        self._config = config.nats.jetstream.consumer
        self._on_taken = on_taken
        self.begin_until = on_lease
        self.key_of = key_of
        self._layout = Layout(config.namespace)
        self._durables = Durables(jetstream, config.service, self._config)
        self.patterns: list[str] = []
        self._sources = Sources(
            self._source,
            self._durables,
            admin,
            layout=self._layout,
            service=config.service,
            leads=lambda: self._leads,
        )
        """Where messages come from: the server, or the leader, of one consumer each."""
        self._own_read = 0
        """How many of the topics with a stream of their own were known when all was last read."""
        self._changing = asyncio.Lock()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        """Set when there is something to handle here."""
        self._holder = holder
        self._lease: Lease | None = None
        self._is_reading = False
        self._not_before_s = 0.0
        """The time of the next attempt, after reading failed."""
        self._pumping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._handing_over: asyncio.Task[None] | None = None
        self._is_over = False
        """Whether all handlers have ended for good."""
        self._trouble: PenstockError | None = None
        """Why nothing could be read just now."""
        self._is_full = False
        """Whether nothing is asked for until something is settled."""
        takeover_s = self._config.takeover
        self._post = Post(
            client, self._layout, service=config.service, name=holder, takeover_s=takeover_s
        )
        self._group = Group(
            self,
            self._post.send,
            name=holder,
            window=self._config.max_ack_pending,
            takeover_s=takeover_s,
            ack_wait_s=self._config.ack_wait,
            is_exclusive=self._config.exclusive,
            patience_s=config.nats.max_reconnect_wait,
            now=elapsed_s,
        )
        self._post.serve(self._group)
        self._left = Left()

    @property
    def is_active(self) -> bool:
        """Whether this process handles something: it leads, or has slots."""
        return self._is_reading or self.membership.members.get(self._holder, 0) > 0

    @property
    def membership(self) -> Membership:
        """The members that share the work of the service, as far as this process knows."""
        return self._group.membership

    @property
    def unhandled(self) -> tuple[str, ...]:
        """Patterns the service once read and has no handler for now."""
        return self._left.unhandled(self._is_wanted)

    async def listen(self, patterns: Collection[str]) -> None:
        """Read these topics too: now, or once this process is the one that reads."""
        async with self._changing:
            new = [one for one in patterns if one not in self.patterns]
            self.patterns += new
            try:
                if not self._is_reading:
                    await self._check_readable(new)
                    await self._start()
                else:
                    await self._read(new)
            except BaseException:
                self.patterns = [one for one in self.patterns if one not in new]
                raise
        for source in self._sources:
            source.is_resting = source.is_resting and not self._is_wanted(source.pattern)
        self._arrived.set()
        if self._pumping is None:
            self._pumping = self._started(self._pump())

    def retire(self) -> None:
        """Leave all messages from now on to other processes of the service."""
        self._group.retire()
        if self._group.desk is not None:
            self._handing_over = self._started(self._hand_over())

    def rest(self, pattern: str) -> None:
        """Stop asking for these topics until `listen` names them again."""
        self.patterns = [one for one in self.patterns if one != pattern]
        self._left.add(pattern)
        for source in self._sources:
            source.is_resting = source.is_resting or within(source.pattern, pattern)

    async def refresh(self) -> None:
        """Read streams that our topics have got meanwhile, or since this last succeeded."""
        async with self._changing:
            if self._is_reading and self._own_read < len(self._admin.own_topics):
                await self._read_all()

    async def forget(self, pattern: str) -> None:
        """Make the service stop reading these topics, and drop its position in them."""
        streams = dict.fromkeys(stream for stream, _, _ in self._admin.places(pattern))
        async with self._changing, self._alone():
            there = {stream: await self._durables.patterns(stream) for stream in streams}
            self._durables.check_whole(pattern, chain.from_iterable(there.values()))
            self.patterns = [one for one in self.patterns if one != pattern]
            for stream, patterns in there.items():
                for one in patterns:
                    if within(one, pattern) and not self._is_wanted(one):
                        await self._sources.drop(stream, one)
            self._left.patterns = [one for one in self._left.patterns if not within(one, pattern)]

    async def fetch(self, messages_max: int) -> list[Delivery]:
        """Return messages as soon as there are any; after a while maybe none."""
        found = self._group.take(messages_max)
        if not found:
            self._taken.clear()
            await self._wait(self._taken)
            if self._trouble is not None:
                error, self._trouble = self._trouble, None
                raise error
            found = self._group.take(messages_max)
        return found

    async def _pump(self) -> None:
        """Read and hand out for as long as this process leads; else wait for its turn."""
        while True:
            try:
                await self._step()
            except PenstockError as error:
                self._trouble = error
                self._taken.set()
                await asyncio.sleep(RETRY_S)
            except STOPS:
                raise
            except BaseException:
                logger.exception("! reading failed in a way nobody thought of")
                await asyncio.sleep(RETRY_S)

    async def _step(self) -> None:
        self._arrived.clear()
        is_idle = not self.patterns or self._group.seat.is_leaving
        if is_idle or not await self._may_read():
            await self._wait(self._arrived)
            return
        held = (len(one.held) for one in self._sources if not one.is_resting)
        room = self._group.window - sum(held)
        self._is_full = room <= 0
        if self._is_full:
            await self._wait(self._arrived)
            return
        self._group.hand_out(await self._fetch(room))

    async def _fetch(self, messages_max: int) -> list[Delivery]:
        self._left.tell(self._is_wanted)
        sources = list(self._sources)
        for source in sources if self._client.connected else ():
            if source.is_doubtful:
                await self._sources.look_after(source)
            if source.is_stale and not source.is_resting and await self._sources.is_next(source):
                found = await source.recover()
                if found:
                    return found
        if not any(source.is_stale and not source.is_resting for source in sources):
            self._group.settled_in()
        self._ask(sources, messages_max)
        deliveries = await self._take(sources)
        if not deliveries:
            await self._wait(self._arrived)
            deliveries = await self._take(sources) if self._is_ours() else []
        return deliveries

    def settle(self, deliveries: Collection[Delivery]) -> None:
        """Ack messages, directly or through the leader."""
        for source, own in by_source(deliveries).items():
            self._group.settle(source, own)

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Have messages delivered again, in order: to another member, or by the server."""
        if self._group.shares:
            self._group.give_back([one for one in deliveries if one.source is not None])
            return
        for source, own in by_source(deliveries).items():
            source.give_back(own)

    def extend(self, deliveries: Collection[Delivery]) -> None:
        """Restart the ack wait of messages, unless another process does."""
        for source, own in by_source(deliveries).items() if self._is_reading else ():
            source.extend(own)

    def held(self) -> Iterable[Delivery]:
        """Return deliveries handed out and not settled, in order for each consumer."""
        return [one for source in self._sources for one in source.handed_out]

    def accept(self, message: Op, handed: Handed) -> tuple[Delivery | None, bool]:
        """Return the delivery of a message from the leader, None if done, and if it is new."""
        source = self._sources.at(*place_of(message[3]))
        return source.accept(message, handed.topic, handed.slot)

    def drop(self, is_taken: IsTaken) -> Collection[Delivery]:
        """Drop deliveries that are not begun, and return those that run: they end here."""
        return self._on_taken(lambda delivery: delivery.source is not None and is_taken(delivery))

    def arrived(self) -> None:
        """Take what there is to handle."""
        self._taken.set()

    def woken(self) -> None:
        """Ask for more, if that had to wait."""
        if self._is_full:
            self._arrived.set()

    @property
    def untold(self) -> int:
        """The number of acks that may not have reached the server."""
        if not self._is_reading:
            return len(self._group.seat.unheard)
        return sum(source.untold for source in self._sources)

    async def tell(self) -> None:
        """Return once every ack has reached the server; send again what a lost connection took."""
        async with self._changing:  # it may be about to lead
            self._is_over = self._group.seat.is_leaving
        if self._handing_over is not None:
            await asyncio.shield(self._handing_over)
        await self._post.through()
        if self._group.desk is not None:
            await self._tell_all()
            return
        for source in self._sources:
            try:
                await source.confirm()
            except (ClientError, JetStreamError) as error:
                logger.info("= acks are not heard: %s", error)

    async def _tell_all(self) -> None:
        while waiting := [one for one in self._sources if one.has_to_tell]:
            try:
                for source in waiting:
                    await source.tell()
            except (ClientError, JetStreamError) as error:
                logger.info("= acks are not heard yet: %s", error)
                await asyncio.sleep(RETRY_S)

    async def lag(self) -> Lag:
        """Return the backlog of the service, whichever of its processes reads."""
        return await lag_of(self._durables, self._streams(), self._is_wanted, self._sources.get)

    async def close(self) -> None:
        """Leave, so that another process can go on."""
        # The handlers have ended by now, or are left behind.
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        led, is_through = self._group.desk is not None, self._group.is_through
        await self._post.close()
        for source in self._sources:
            if led:
                source.release()
            else:
                source.close()
        self._sources.clear()
        self._is_reading = False
        if self._lease is not None:
            if not led and not is_through:
                await self._lease.amend()
            await self._lease.close()

    async def _start(self) -> None:
        """Lead, if this process may."""
        await self._admin.ensure_dead_letters()
        if self._lease is None:
            self._lease = await self._new_lease(self._lost)
            self._lease.on_heard = self._follow
            self._lease.table, self._lease.on_stored = self._group.table, self._group.stored
        lease = self._lease
        if not lease.is_held and not await lease.acquire():
            self._follow(lease.seen)
            return
        if self._group.seat.is_leaving:
            lease.table = lambda: lease.members
            await lease.free()
            return
        self._group.lead(lease, lease.sequence, lease.members)
        try:
            await self._read_all()
            if self._leads:  # else another process has taken over in the meantime
                for source in self._sources.unread():
                    self._group.drop(source)
                    self._sources.forget(source)
        except BusError:
            await self._leave_it()
            raise
        self._is_reading = self._leads
        await self._left.find(self._durables, self._streams())

    def _follow(self, written: Written) -> None:
        """Follow whoever leads now."""
        if self._group.follow(written.holder, written.members):
            self._post.hurry()

    async def _hand_over(self) -> None:
        """Have another process lead, as soon as there is one, while the handlers here end."""
        while self._group.may_hand_over or (self._group.desk is not None and not self._is_over):
            if self._group.close_books() and await self._told() and self._group.close_books():
                assert self._lease is not None
                self._group.hand_over()
                self._stop_reading()
                self._restart()
                await self._lease.free()
                return
            await asyncio.sleep(LEAVING_LOOK_S)

    async def _told(self) -> bool:
        """Return whether all acks so far are stored."""
        try:
            for source in self._sources:
                if source.has_to_tell:
                    await source.tell()
        except (ClientError, JetStreamError) as error:
            logger.info("= acks are not heard yet: %s", error)
            return False
        return True

    async def _check_readable(self, patterns: Iterable[str]) -> None:
        """Raise now if these could not be read when it is our turn."""
        for pattern in patterns:
            for stream, own, _ in self._admin.places(pattern):
                await self._durables.check(stream, own)

    async def _leave_it(self) -> None:
        """Let another process read: this one could not, and would block the others."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            self._group.go()
            self._stop_reading()
            await lease.close()
            self._group.let_go()
            self._not_before_s = monotonic() + self._config.takeover

    async def _new_lease(self, lost: Callable[[], None]) -> Lease:
        await self._admin.ensure_leases()
        return Lease(
            self._client,
            self._jetstream,
            subject=self._layout.lease_subject(self._service),
            holder=self._holder,
            takeover_s=self._config.takeover,
            lost=lost,
            relied=self.begin_until,
        )

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Keep other processes of the service from reading meanwhile; raise if one does."""
        if self._leads:
            yield
            return
        lease = await self._new_lease(lambda: None)  # nothing was read that could be lost
        try:
            if not await lease.acquire_within(self._config.takeover + STANDBY_LOOK_S):
                raise BusError(
                    f"{lease.seen_holder or 'another process'} reads for `{self._service}`, and "
                    "what it reads cannot be forgotten behind its back; hint: call `forget` "
                    "there, or stop it first"
                )
            yield
        finally:
            await lease.close()

    async def _may_read(self) -> bool:
        """Tell whether this process reads; become the one that does when it is its turn."""
        lease = self._lease
        if lease is not None and lease.is_held and not lease.is_fresh:
            # Nobody can be reached. Whoever comes first when the server is back has it.
            return False
        if not self._is_reading and monotonic() >= self._not_before_s:
            await self._try_to_read()
        return self._is_reading

    async def _try_to_read(self) -> None:
        if self._lease is not None and self._lease.free_in_s:
            await self._lease.news(min(self._lease.free_in_s, STANDBY_LOOK_S))
            return
        if self._group.seat.is_leaving:
            return
        async with self._changing:
            if not self._is_reading:
                await self._start()

    def _lost(self) -> None:
        """Another process reads now."""
        self._group.lost()
        self._stop_reading()
        self._restart()
        if self._lease is not None:
            self._follow(self._lease.seen)

    def _stop_reading(self) -> None:
        """Read nothing more, also not what was asked for already."""
        self._is_reading = False
        self._sources.follow()

    def _restart(self) -> None:
        """Give up a look for messages that has begun."""
        if self._pumping is not None:
            self._pumping.cancel()
            self._pumping = self._started(self._pump())

    def _started(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _read_all(self) -> None:
        own = len(self._admin.own_topics)
        await self._read(self.patterns)
        self._own_read = own

    async def _read(self, patterns: Collection[str]) -> None:
        """Create a source for every consumer of these topics."""
        for pattern in patterns:
            for stream, own, subject in self._admin.places(pattern):
                there = await self._durables.ensure(stream, own, subject, self._sources.narrowing)
                for one in there:
                    if self._leads:  # else another process has taken over in the meantime
                        others = [narrow for narrow in there if narrow != one]
                        await self._sources.lead(stream, one, others)
        self._sources.sort()

    def _ask(self, sources: list[Source], messages_max: int) -> None:
        """Ask for as much as there is room for: a little of quiet topics, the rest of busy ones."""
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
        # Taken at last, with nothing to wait for behind it: what is taken is handed out. And no
        # more of it than had come before it was asked for what comes first.
        counts = {source: source.arrived for source in sources if source.arrived}
        ready = [source for source in counts if await self._sources.is_next(source)]
        deliveries = [one for source in ready for one in source.take(counts[source])]
        if self._admin.own_topics:
            # Some publisher has not heard yet that the topic has a stream of its own.
            self._sources.followers |= self._admin.own_topics & {
                delivery.topic
                for delivery in deliveries
                if delivery.source.stream == self._layout.stream
            }
        return deliveries

    def _source(
        self, stream: str, pattern: str, excluded: list[str], *, is_starting: bool = False
    ) -> Source:
        return Source(
            self._client,
            self._jetstream,
            stream=stream,
            durable=durable_of(self._service, pattern),
            pattern=pattern,
            config=self._config,
            arrived=self._arrived,
            is_ours=self._is_leased if is_starting else self._is_ours,
            excluded=excluded,
        )

    def _streams(self) -> list[str]:
        """Return every stream that the service may have consumers on."""
        return list(dict.fromkeys(stream for stream, _, _ in self._admin.places(">")))

    def _is_wanted(self, pattern: str) -> bool:
        return any(within(pattern, one) for one in self.patterns)

    @property
    def _leads(self) -> bool:
        """Whether this process has the lease, as far as it knows."""
        return self._lease is not None and self._lease.is_held

    def _is_ours(self) -> bool:
        return self._is_reading and self._is_leased()

    def _is_leased(self) -> bool:
        return self._lease is None or self._lease.is_fresh

    async def _wait(self, event: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.fetch_wait):
                await event.wait()
