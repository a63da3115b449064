"""
Which process reads for a service: one, while the others stand by.

The holder writes its name down on the server, on a subject that keeps the last
message only, and writes it again every so often. Each writing names the one before
it, so of two that try the server takes one. A standby that has seen nothing new for
`takeover_s` writes its own name; an empty name, left by a clean stop, is taken at once.

The holder counts from before it wrote, a standby from after it read, and the holder
is content with less: whatever the clocks say, it stops reading before another begins.
What a process has asked for that froze in between is for the pins of the consumers to
refuse; see `source`. What it has here already it begins with only while the lease is
fresh, by a clock that runs on while it is frozen; see `lanes`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import NamedTuple

from penstock.bus.elapsed import elapsed_s
from penstock.bus.engine import OnLease, ignore_lease
from penstock.bus.operate.failures import STOPS
from penstock.client import Client, JetStream
from penstock.errors import ClientError, JetStreamError
from penstock.hot.wire import Op

logger = logging.getLogger("penstock.bus")

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
RENEWALS = 3
"""How often the holder writes within the time after which it is taken for dead."""
FRESH = 0.8
"""The part of that time for which the holder relies on what it has written."""
RETRY_S = 0.2


class Record(NamedTuple):
    """What is written down."""

    sequence: int
    holder: str


NOBODY = Record(0, "")


class Lease:
    """The right to read for a service."""

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
        self._sequence = 0
        self._confirmed_s = 0.0
        self._seen: Record | None = None
        self._seen_s = 0.0
        self._heard = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._interest = client.listen(subject, self._receive)
        client.connection.watchers.append(self)

    @property
    def is_fresh(self) -> bool:
        """Whether nobody else can have it now."""
        return self.is_held and elapsed_s() - self._confirmed_s < self._takeover_s * FRESH

    @property
    def seen_holder(self) -> str:
        """Whose it was when it was last looked at."""
        return "" if self._seen is None else self._seen.holder

    async def acquire(self) -> bool:
        """Take it if it is free, or its holder has been silent for too long."""
        asked_s = elapsed_s()
        record = await self._read()
        now_s = elapsed_s()
        # A server that was away has heard nobody: the holder gets its time again.
        if record != self._seen or now_s - asked_s > self._takeover_s / RENEWALS:
            self._seen, self._seen_s = record, now_s
        if record.holder and now_s - self._seen_s < self._takeover_s:
            return False
        if not await self._write(self._holder, record.sequence):
            return False
        if record.holder:
            logger.warning("! %s is silent; this process reads in its place", record.holder)
        self.is_held = True
        self._renewing = asyncio.get_running_loop().create_task(self._renew())
        return True

    async def news(self, wait_s: float) -> None:
        """Return when something was written, or after a while."""
        self._heard.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._heard.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Let another have it, now."""
        self._client.unlisten(self._interest)
        self._client.connection.watchers.remove(self)
        await self._stop_renewing()
        if self.is_held and self._client.connected:
            try:
                await self._leave()
            except (ClientError, JetStreamError) as error:
                logger.info("= another process has to wait: %s", error)
        self.is_held = False

    def disconnected(self, error: Exception) -> None:
        """Nothing is heard any more."""
        self._seen = None

    def reconnected(self) -> None:
        """Have it looked at."""
        self._heard.set()

    def closed(self, error: Exception) -> None:
        """Nothing will be heard any more."""
        self._heard.set()

    def _receive(self, operations: list[Op]) -> None:
        # What is heard need not have been taken by the stream: it is only a reason to look.
        if any(operation[5] != self._holder.encode() for operation in operations):
            self._heard.set()

    async def _renew(self) -> None:
        """Write it again, for as long as it is ours."""
        while self.is_held:
            late_s = elapsed_s() - self._confirmed_s
            await self.news(max(RETRY_S, self._takeover_s / RENEWALS - late_s))
            if not self._client.connected:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                if not await self._write(self._holder, self._sequence):
                    await self._look()
            except (ClientError, JetStreamError) as error:
                logger.info("= `%s` cannot be written: %s", self._subject, error)
            except STOPS:
                raise
            except BaseException:
                # A lease that nobody renews would be another's in a moment.
                logger.exception("! renewing `%s` failed", self._subject)

    async def _leave(self) -> None:
        """Write that nobody has it, behind whatever we have written last."""
        while not await self._write("", self._sequence):
            # A renewal that was given up was stored all the same, and is what comes before.
            record = await self._read()
            if record.holder != self._holder or record.sequence == self._sequence:
                return
            self._sequence = record.sequence

    async def _look(self) -> None:
        """See whose it is: ours, if only the answer to our writing was lost."""
        record = await self._read()
        if record.holder == self._holder or record == NOBODY:
            self._sequence = record.sequence
            return
        self.is_held = False
        self._seen = None
        logger.warning("! %s reads for this service now; this process stands by", record.holder)
        self._lost()

    async def _read(self) -> Record:
        try:
            message = await self._jetstream.streams.get(self._stream, last_by_subj=self._subject)
        except JetStreamError as error:
            if error.is_not_found:
                return NOBODY
            raise
        return Record(message.sequence, message.payload.decode(errors="replace"))

    async def _write(self, holder: str, after: int) -> bool:
        """Write a name behind the record that was last; tell whether it still was."""
        sent_s = elapsed_s()
        reply = await self._client.request(
            self._subject,
            holder.encode(),
            headers=[(EXPECTED, str(after))],
            timeout_s=self._takeover_s / RENEWALS,
        )
        answer = json.loads(reply.payload)
        if "error" in answer:
            logger.debug("= `%s`: %s", self._subject, answer["error"])
            return False
        self._sequence, self._confirmed_s = answer["seq"], sent_s
        self._relied(sent_s + self._takeover_s * FRESH)
        return True

    async def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            self._renewing = None
