"""
Which process leads a service: one, while the others follow or stand by.

The holder writes its name down on the server, on a subject that keeps the last
message only, and writes it again every so often. Each writing names the one before
it, so of two that try the server takes one. A standby that has seen nothing new for
`takeover_s` writes its own name; an empty name, left by a clean stop, is taken at once.
With the name it writes which slots each member has, so that who leads next knows.

The holder counts from before it wrote, a standby from after it read it or heard it, and the
holder is content with less: whatever the clocks say, it stops reading before another begins.
What a process has asked for that froze in between is for the pins of the consumers to
refuse; see `source`. What it has here already it begins with only while the lease is
fresh, by a clock that runs on while it is frozen; see `lanes`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from penstock.bus.elapsed import elapsed_s
from penstock.bus.engine import OnLease, ignore_lease
from penstock.bus.engines.nats.members.slots import Table
from penstock.bus.operate.failures import STOPS
from penstock.client import Client, JetStream
from penstock.errors import ClientError, JetStreamError
from penstock.hot.wire import Op

logger = logging.getLogger("penstock.bus")

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
RENEWALS = 3
"""The number of renewals within the time after which the holder counts as dead."""
FRESH = 0.8
"""The part of that time for which the holder relies on what it has written."""
RETRY_S = 0.2


class Written(msgspec.Struct, frozen=True):
    """The stored content of a lease."""

    holder: str = ""
    after: int = 0
    """The record before it, so that no two are the same."""
    members: Table = {}
    """The slots of each member."""


class Record(NamedTuple):
    """The stored content, and its sequence on the server."""

    sequence: int
    written: Written

    @property
    def holder(self) -> str:
        """The holder's name; empty if the lease is free."""
        return self.written.holder


NOBODY = Record(0, Written())


class Lease:
    """The right to lead a service."""

    def __init__(
        self,
        client: Client,
        jetstream: JetStream,
        *,
        subject: str,
        holder: str,
        takeover_s: float,
        lost: Callable[[], None],
        relied: OnLease = ignore_lease,
    ) -> None:
        self.is_held = False
        """Whether it was ours when we last heard of it."""
        self._client = client
        self._jetstream = jetstream
        self._subject = subject
        self._stream = subject.partition(".")[0]
        self._holder = holder
        self._takeover_s = takeover_s
        self._lost = lost
        self._relied = relied
        self.members: Table = {}
        """The slots of each member, as they were when it was taken."""
        self.table: Callable[[], Table] = lambda: self.members
        """Returns the slots of each member, to be stored with the holder's name."""
        self.on_stored: Callable[[Table], None] = lambda table: None
        """Called with the table that is stored now, by this process."""
        self.sequence = 0
        """The record that was last, where this process has written it."""
        self._confirmed_s = 0.0
        self._seen: Written | None = None
        self._seen_s = 0.0
        self._writing = asyncio.Lock()
        self._heard = asyncio.Event()
        self._due = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        self.on_heard: Callable[[Written], None] = lambda written: None
        """Called with the records of other processes."""
        self._interest = client.listen(subject, self._receive)
        client.connection.watchers.append(self)

    @property
    def is_fresh(self) -> bool:
        """Whether no other process can have the lease now."""
        return self.fresh_s > 0

    @property
    def fresh_s(self) -> float:
        """How long no other process can have the lease."""
        left_s = self._confirmed_s + self._takeover_s * FRESH - elapsed_s()
        return left_s if self.is_held else 0.0

    @property
    def free_in_s(self) -> float:
        """How long the lease will surely not be free; 0: it is worth a look."""
        if self._seen is None or not self._seen.holder:
            return 0.0
        return max(0.0, self._seen_s + self._takeover_s - elapsed_s())

    @property
    def seen(self) -> Written:
        """The content last heard or read."""
        return self._seen or NOBODY.written

    @property
    def seen_holder(self) -> str:
        """The holder at the last look; empty if there was none."""
        return "" if self._seen is None else self._seen.holder

    async def acquire(self) -> bool:
        """Take it if it is free, or its holder has been silent for too long."""
        asked_s = elapsed_s()
        record = await self._read()
        now_s = elapsed_s()
        # A server that was away has heard nobody: the holder gets its time again.
        if record.written != self._seen or now_s - asked_s > self._takeover_s / RENEWALS:
            self._seen, self._seen_s = record.written, now_s
        if record.holder and now_s - self._seen_s < self._takeover_s:
            return False
        self.members = dict(record.written.members)
        self.members.pop(record.holder, None)
        if not await self._write(self._holder, record.sequence, self.members):
            return False
        if record.holder:
            logger.warning("! %s is silent; this process leads in its place", record.holder)
        self.is_held = True
        self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return True

    async def acquire_within(self, wait_s: float) -> bool:
        """Take it as soon as it is free; return whether it was within a while."""
        deadline_s = elapsed_s() + wait_s
        while not await self.acquire():
            if elapsed_s() > deadline_s:
                return False
            await self.news(RETRY_S)
        return True

    def renew(self) -> None:
        """Write it again soon, with the table of then."""
        self._due.set()

    async def news(self, wait_s: float) -> None:
        """Return when something was written, or after a while."""
        self._heard.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._heard.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Free the lease at once."""
        self._client.unlisten(self._interest)
        self._client.connection.watchers.remove(self)
        await self._stop_renewing()
        if self.is_held and self._client.connected:
            await self._try(self._leave)
        self.is_held = False

    async def free(self) -> None:
        """Leave the lease to others, and go on listening to who has it."""
        await self._stop_renewing()
        while self.is_fresh and not await self._try(self._leave):  # noqa: ASYNC110  (a retry)
            await asyncio.sleep(RETRY_S)
        self.is_held = False

    async def amend(self) -> None:
        """Leave the table of a lease that nobody has taken."""
        if self._client.connected:
            await self._try(self._amend)

    def disconnected(self, error: Exception) -> None:
        """Nothing is heard any more."""
        self._seen = None

    def reconnected(self) -> None:
        """Have it looked at."""
        self._heard.set()
        self._due.set()

    def closed(self, error: Exception) -> None:
        """Nothing will be heard any more."""
        self._heard.set()

    def _receive(self, operations: list[Op]) -> None:
        # What is heard need not have been taken by the stream: it is a reason to look, and
        # to wait for as long as from when it was read if that is what is read then.
        for operation in operations:
            written = read(operation[5][operation[4] :])
            if written.holder == self._holder:
                continue
            self._heard.set()
            self._due.set()
            # Of two that name the same record the server takes one, most often the first.
            if self._seen is None or written.after > self._seen.after:
                self._seen, self._seen_s = written, elapsed_s()
                self.on_heard(written)

    async def _renew(self) -> None:
        """Write it again, for as long as it is ours."""
        while self.is_held:
            late_s = elapsed_s() - self._confirmed_s
            with suppress(TimeoutError):
                async with asyncio.timeout(max(RETRY_S, self._takeover_s / RENEWALS - late_s)):
                    await self._due.wait()
            if not self._client.connected:
                await asyncio.sleep(RETRY_S)
                continue
            self._due.clear()
            try:
                await self._renew_now()
            except (ClientError, JetStreamError) as error:
                logger.info("= `%s` cannot be written: %s", self._subject, error)
                await asyncio.sleep(RETRY_S)
                self._due.set()
            except STOPS:
                raise
            except BaseException:
                # A lease that nobody renews would be another's in a moment.
                logger.exception("! renewing `%s` failed", self._subject)

    async def _renew_now(self) -> None:
        """Write it again, or find out who has."""
        async with self._writing:
            if not self.is_held:
                return
            table = self.table()
            if await self._write(self._holder, self.sequence, table):
                self.on_stored(table)
            else:
                await self._look()

    async def _leave(self) -> None:
        """Store a free lease, behind our last record."""
        while not await self._write("", self.sequence, self.table()):
            # A renewal that was given up was stored all the same, and is what comes before.
            record = await self._read()
            if record.holder != self._holder or record.sequence == self.sequence:
                return
            self.sequence = record.sequence

    async def _amend(self) -> None:
        record = await self._read()
        members = dict(record.written.members)
        if not record.holder and members.pop(self._holder, None) is not None:
            await self._write("", record.sequence, members)

    async def _try(self, act: Callable[[], Awaitable[None]]) -> bool:
        try:
            await act()
        except (ClientError, JetStreamError) as error:
            logger.info("= another process has to wait: %s", error)
            return False
        return True

    async def _look(self) -> None:
        """Find the holder: it is us if only the answer to our write was lost."""
        record = await self._read()
        if record.holder == self._holder or record == NOBODY:
            self.sequence = record.sequence
            self._due.set()  # with which table it was written is not known
            return
        self.is_held = False
        self._seen = None
        logger.warning("! %s leads this service now; this process stands by", record.holder)
        self._lost()

    async def _read(self) -> Record:
        try:
            message = await self._jetstream.streams.get(self._stream, last_by_subj=self._subject)
        except JetStreamError as error:
            if error.is_not_found:
                return NOBODY
            raise
        return Record(message.sequence, read(message.payload))

    async def _write(self, holder: str, after: int, members: Table) -> bool:
        """Write a name behind the record that was last; tell whether it still was."""
        sent_s = elapsed_s()
        reply = await self._client.request(
            self._subject,
            msgspec.json.encode(Written(holder, after, members)),
            headers=[(EXPECTED, str(after))],
            timeout_s=self._takeover_s / RENEWALS,
        )
        answer = json.loads(reply.payload)
        if "error" in answer:
            logger.debug("= `%s`: %s", self._subject, answer["error"])
            return False
        self.sequence = answer["seq"]
        if holder:
            self._confirmed_s = sent_s
            self._relied(sent_s + self._takeover_s * FRESH)
        return True

    async def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            self._renewing = None


def read(payload: bytes) -> Written:
    """Return the stored content; a foreign payload counts as a name."""
    try:
        return msgspec.json.decode(payload, type=Written)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Written(payload.decode(errors="replace"))
