"""
One durable consumer, read by pulling.

One request for messages stands at a time: for a short while when messages come, for
longer when none do. They arrive as they are stored, and many at a time when there are many.

**Order across a break.** After a restart or a lost connection the server still
waits for acks of messages that we do not have: it would send newer ones first and
those only after their ack wait. So `recover` comes before anything new: it tells
the server to send all of them now, and ends when the server waits for nothing
that is not here. A message that comes again although it is here, or was settled
already, is recognised by its sequence and never handed out twice.

**Fenced.** A consumer serves one client, which the server has pinned and
which names its pin with every request. A process that takes over unpins it first, so the
server refuses requests of an earlier process, however late it wakes up. The pin comes with
the first message, and consumer sequences have no gaps: a new pin or a gap means that
messages may have gone to another process, and is a break like the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection
from itertools import islice
from time import monotonic
from typing import Any

from penstock.bus.config.nats import ConsumerConfig
from penstock.bus.engine import PIN_ID, Delivery, Headers
from penstock.bus.engines.nats.acks import (
    State,
    delivery_number,
    is_ack_subject,
    stream_sequence,
    stream_sequence_of,
)
from penstock.bus.engines.nats.layout import matches, topic_of
from penstock.client import Client, JetStream
from penstock.client.jetstream.api import field
from penstock.client.jetstream.pullrequests import PullRequests, nanoseconds
from penstock.client.jetstream.status import NextStep
from penstock.errors import ClientError, JetStreamError
from penstock.hot.wire import Op
from penstock.protocol import headers as header_block
from penstock.protocol import wellknown

logger = logging.getLogger("penstock.bus")

SETTLED_REMEMBERED_MAX = 131_072
"""Sequences remembered as settled: more than a server forgets when it is killed."""

RECALLED_MAX = 100_000
"""Sequences asked back at once; the rest come when their ack wait is over."""

ARRIVED_MAX = 2 * RECALLED_MAX
"""Messages held before they are taken; a server sends those beyond that again."""

TOPICS_CACHED_MAX = 4096

GRACE_S = 2.0
"""The longest time between the expiry of a request and the notice of its end."""

IDLE_WAITS_MAX = 16
"""How much longer a request may stand, at most, when nothing comes."""

GROUP = "reader"
"""The priority group of a consumer, whose one client is pinned."""
WRONG_PIN = 423

CONFIRM_EVERY_S = 0.5
"""The shortest time between two requests to confirm the acks so far."""

ACK = b"+ACK"
ACK_LINE = b"PUB %b 4\r\n+ACK\r\n"
NAK_LINE = b"PUB %b 4\r\n-NAK\r\n"
PROGRESS_LINE = b"PUB %b 4\r\n+WPI\r\n"


class Source:
    """One durable consumer of a stream."""

    def __init__(
        self,
        client: Client,
        jetstream: JetStream,
        *,
        stream: str,
        durable: str,
        pattern: str,
        config: ConsumerConfig,
        arrived: asyncio.Event,
        is_ours: Callable[[], bool],
        excluded: list[str],
    ) -> None:
        self.stream = stream
        self.durable = durable
        self.pattern = pattern
        """The topics it reads."""
        self.excluded = excluded
        """Topics within that another consumer of the service reads."""
        self.is_resting = False
        """Whether it asks for nothing, because there is no handler."""
        self.position = 0
        """The last sequence that was handed out, here or in an earlier session."""
        self.is_stale = True
        """Whether `recover` must come before anything new."""
        self.is_doubtful = False
        """Whether the consumer may be gone: it did not answer."""
        self.is_led = True
        """Whether this process asks the server, and no other one hands messages over."""
        self.held: dict[int, Delivery] = {}
        """Deliveries that are here and not settled, by sequence."""
        self._found: list[Delivery] = []
        """Those of them not handed out yet, because earlier messages may still arrive."""
        self._client = client
        self._jetstream = jetstream
        self._config = config
        self._arrived = arrived
        self._is_ours = is_ours
        self._pin = b""
        self._is_recovering = False
        self._is_closed = False
        self._next_delivery = 0
        """The next consumer sequence, if the server serves no other process."""
        self._idle_waits = 1
        self._operations: deque[Op] = deque()
        self._settled: dict[int, None] = {}
        self._acks = self._acks_confirmed = self._acks_told = 0
        """Acks so far, those that the server has confirmed, and those of which it told us all."""
        self._last_ack = b""
        """The subject of the last ack: its confirmation says that all before it are stored."""
        self._confirm_s = 0.0
        """When the server was last asked to confirm."""
        self._cuts = self._cuts_mended = 0
        """Lost connections so far, and those of them after which all acks were confirmed."""
        self.is_done: Callable[[int], bool] | None = None
        """Whether the consumer that this one continues has handled a sequence."""
        self._topics: dict[bytes, str] = {}
        self._stands_s = 0.0
        self._asked_s = 0.0
        self._not_before_s = 0.0
        inbox = f"{client.new_inbox()}."
        self._requests = PullRequests(jetstream.options.prefix, stream, durable, inbox.encode())
        self._confirmed = f"{inbox}acks-".encode()
        self._interest = client.listen(f"{inbox}*", self._receive)
        client.connection.watchers.append(self)

    def close(self) -> None:
        """Leave the inbox."""
        self._is_closed = True
        self._client.unlisten(self._interest)
        self._client.connection.watchers.remove(self)

    @property
    def arrived(self) -> int:
        """How many messages there are to take."""
        return len(self._operations)

    @property
    def handed_out(self) -> list[Delivery]:
        """Deliveries that are handed out to a handler and not settled."""
        found = set(self._found)
        return [one for one in self.held.values() if one not in found]

    @property
    def requested(self) -> int:
        """The number of requested messages that may still come."""
        return self._requests.outstanding

    @property
    def _is_waiting(self) -> bool:
        late_s = monotonic() - self._asked_s - self._stands_s
        return self.requested > 0 and late_s < GRACE_S

    @property
    def is_busy(self) -> bool:
        """Whether a message came since this was last asked."""
        return self._idle_waits == 1

    @property
    def can_ask(self) -> bool:
        """Whether no earlier request stands, and the server is there to answer."""
        # The server would serve two requests in turn, and messages for one may overtake
        # those for the other.
        is_free = not self._is_waiting and not self.is_resting
        return is_free and monotonic() >= self._not_before_s and self._client.connected

    def ask(self, messages_max: int) -> None:
        """Ask for messages; only if `can_ask`."""
        self._requests.forget()
        self._request(min(messages_max, self._config.fetch_batch), self._idle_waits)
        self._idle_waits = min(2 * self._idle_waits, IDLE_WAITS_MAX)

    def take(self, messages_max: int | None = None) -> list[Delivery]:
        """Return new messages that have arrived; none if `recover` must come first."""
        if self._operations and not self._is_recovering:
            self.is_stale = self.is_stale or self._has_gap()
            if self.is_stale:
                return []
        operations, self._operations = self._operations, deque()
        while messages_max is not None and len(operations) > messages_max:
            self._operations.appendleft(operations.pop())
        if self.is_done is not None:
            operations = self._without_done(operations, self.is_done)
        held, settled, topics = self.held, self._settled, self._topics
        deliveries = []
        for operation in operations:
            _, subject, _, reply, header_bytes, payload = operation
            tokens = reply.split(b".")
            # `$JS.ACK.stream.consumer…`, or with a domain and an account before the stream.
            sequence = int(tokens[5 if len(tokens) == 9 else 7])
            if sequence in held or sequence in settled:
                self._came_again(sequence, reply)
                continue
            block = b""
            if header_bytes:
                block, payload = payload[:header_bytes], payload[header_bytes:]
            topic = topics.get(subject) or self._topic(subject)
            if not topic:
                self._skip(sequence, reply)
                continue
            delivery = Delivery(topic, payload, block, sequence, self, reply)
            held[sequence] = delivery
            deliveries.append(delivery)
        if deliveries:
            self.position = max(self.position, deliveries[-1].sequence)
        return deliveries

    async def recover(self) -> list[Delivery]:
        """Return messages that earlier sessions left unsettled, in order, before new ones."""
        self._is_recovering = True
        try:
            await self._take_back()
        finally:
            self._is_recovering = False
        found, self._found = self._found, []
        found.sort(key=_sequence)
        return found

    async def unpin(self) -> None:
        """Make the server serve the next process that asks, and no earlier one."""
        self._pin = b""
        try:
            await self._jetstream.consumers.unpin(self.stream, self.durable, group=GROUP)
        except JetStreamError as error:
            # A server from before there were pins.
            logger.info("= `%s` cannot be unpinned: %s", self.durable, error)

    def begin_again(self) -> int:
        """Prepare for a recreated consumer; return its start, the first unsettled sequence."""
        self._operations.clear()
        self._pin, self._next_delivery = b"", 0
        self._requests.forget()
        self.is_stale = True
        return min(self.held, default=self.position + 1)

    def release(self) -> None:
        """Give back all messages, and leave."""
        self.give_back(list(self.held.values()))
        self._send([NAK_LINE % operation[3] for operation in self._operations])
        self._operations.clear()
        self.close()

    def lead(self, excluded: list[str]) -> None:
        """Ask the server from now on: until now another process has handed messages over."""
        self.excluded = excluded
        self.is_led = self.is_stale = True
        self.is_resting = False
        self._topics.clear()

    def follow(self) -> None:
        """Ask the server no more: another process does, and what is handed over is remembered."""
        self._operations.clear()
        self._found.clear()
        self.is_led, self._pin = False, b""
        self._requests.forget()

    def accept(self, operation: Op, topic: str, slot: int) -> tuple[Delivery | None, bool]:
        """Accept a message from the leader; return its delivery, None if done, and if it is new."""
        _, _, _, reply, header_bytes, payload = operation
        sequence = stream_sequence(operation)
        if sequence in self._settled:
            return None, False
        known = self.held.get(sequence)
        if known is not None:
            known.handle = reply
            return known, False
        block, payload = payload[:header_bytes], payload[header_bytes:]
        delivery = Delivery(topic, payload, block, sequence, self, reply)
        delivery.slot = slot
        self.held[sequence] = delivery
        self.position = max(self.position, sequence)
        return delivery, True

    def reads(self, topic: str) -> bool:
        """Return whether messages of a topic come from this consumer."""
        return matches(self.pattern, topic) and not self._is_excluded(topic)

    def forget(self, delivery: Delivery) -> None:
        """Drop a message that another process gets."""
        if self.held.get(delivery.sequence) is delivery:
            del self.held[delivery.sequence]

    def settle(self, deliveries: Collection[Delivery]) -> None:
        """Ack messages."""
        self.finish(deliveries)
        self._acks += len(deliveries)
        for delivery in deliveries:
            self._last_ack = delivery.handle
        self._send([ACK_LINE % delivery.handle for delivery in deliveries])

    def finish(self, deliveries: Collection[Delivery]) -> None:
        """Remember finished messages that the leader acks."""
        held, settled = self.held, self._settled
        for delivery in deliveries:
            held.pop(delivery.sequence, None)
            settled[delivery.sequence] = None
        if len(settled) > SETTLED_REMEMBERED_MAX:
            for sequence in list(islice(settled, len(settled) - SETTLED_REMEMBERED_MAX // 2)):
                del settled[sequence]

    @property
    def untold(self) -> int:
        """The number of acks that the server may not have stored."""
        return self._acks - self._acks_confirmed

    @property
    def has_to_tell(self) -> bool:
        """Whether the server may lack acks."""
        # A confirmed ack says nothing of others that went to an earlier leader of the consumer.
        return self._acks != self._acks_told or self._cuts != self._cuts_mended

    async def tell(self) -> None:
        """Have the server store every ack, also those sent to a server that is gone by now."""
        acks, cuts = self._acks, self._cuts
        try:
            # In a cluster another server may lead the consumer, unknown to our connection.
            known = await self._mend()
        except JetStreamError as error:
            if not error.is_not_found:  # else there is nobody to tell
                raise
            known = 0
        if self._last_ack and stream_sequence_of(self._last_ack) <= known:
            await self._client.request_at(self._last_ack, ACK)
        if cuts == self._cuts:
            self._acks_confirmed = self._acks_told = acks
            self._cuts_mended = cuts

    def give_back(self, deliveries: Collection[Delivery]) -> None:
        """Have messages delivered again, in order."""
        lines = []
        for delivery in sorted(deliveries, key=_sequence):
            self.held.pop(delivery.sequence, None)
            lines.append(NAK_LINE % delivery.handle)
        self._send(lines)

    def extend(self, deliveries: Collection[Delivery]) -> None:
        """Restart the ack wait of messages."""
        self._send([PROGRESS_LINE % delivery.handle for delivery in deliveries])

    async def state(self) -> State:
        """Return the progress of the consumer."""
        return State.of(await self.info())

    async def info(self) -> dict[str, Any]:
        """Return the server's information on the consumer."""
        return await self._jetstream.consumers.info(self.stream, self.durable)

    def timestamp_ns(self, handle: bytes) -> int:
        """Return when a message was stored."""
        tokens = handle.split(b".")
        return int(tokens[7 if len(tokens) == 9 else 9])

    def deliveries(self, handle: bytes) -> int:
        """Return how often a message was delivered, this time included."""
        tokens = handle.split(b".")
        return int(tokens[4 if len(tokens) == 9 else 6])

    def headers(self, handle: bytes) -> Headers:
        """Return no headers: NATS has them in the block, or there are none."""
        return []

    async def confirm(self) -> None:
        """Return once the acks of this process are stored, although another one reads now."""
        if self.untold:
            acks = self._acks
            await self._client.request_at(self._last_ack, ACK)
            self._acks_confirmed = self._acks_told = acks

    def disconnected(self, error: Exception) -> None:
        """The server forgot our requests, and messages on their way may be lost."""
        self._requests.forget()
        self._cuts += 1
        self.is_stale = True
        self._arrived.set()

    def reconnected(self) -> None:
        """Have the fetcher look."""
        self._not_before_s = 0.0
        self._arrived.set()

    def closed(self, error: Exception) -> None:
        """Nothing will come any more."""
        self._arrived.set()

    def _receive(self, operations: list[Op]) -> None:
        # A message has a reply subject to ack to; a line about a request has none.
        messages = [one for one in operations if is_ack_subject(one[3])] if self.is_led else []
        del messages[max(0, ARRIVED_MAX - len(self._operations)) :]
        if messages:
            self._idle_waits = 1
            if not self._pin:
                self._pinned(messages[-1])
        self._operations.extend(messages)
        self._requests.arrived(len(messages))
        for operation in operations:
            if not operation[3]:
                self._read_status(operation)
        self._arrived.set()

    def _read_status(self, operation: Op) -> None:
        if operation[1].startswith(self._confirmed) and not operation[4]:
            acks = int(operation[1].removeprefix(self._confirmed))
            self._acks_confirmed = max(self._acks_confirmed, acks)
            return
        outcome, error = self._requests.read(operation)
        if outcome in (NextStep.OVER, NextStep.ALIVE):
            return
        self._requests.forget()
        if isinstance(error, JetStreamError) and error.code == WRONG_PIN:
            self._pin, self.is_stale = b"", True
            return
        # An election, or the consumer is gone: ask again, but not at once.
        self.is_doubtful = True
        self._not_before_s = monotonic() + self._config.fetch_wait
        logger.info("= `%s` on `%s` answers: %s", self.durable, self.stream, error)

    def _request(self, messages: int, waits: int = 1) -> None:
        self._stands_s = self._config.fetch_wait * waits
        requests = self._requests
        pin = {"id": self._pin.decode()} if self._pin else {}
        body = requests.ask(messages, expires=nanoseconds(self._stands_s), group=GROUP, **pin)
        self._asked_s = monotonic()
        self._client.send_nowait(requests.subject, body, requests.reply, b"")
        self._ask_to_confirm()

    def _ask_to_confirm(self) -> None:
        """Have the server say now and then which acks are stored: an ack alone has no answer."""
        if self.untold and self._asked_s - self._confirm_s > CONFIRM_EVERY_S:
            self._confirm_s = self._asked_s
            reply = self._confirmed + b"%d" % self._acks
            self._client.send_nowait(self._last_ack, ACK, reply, b"")

    def _came_again(self, sequence: int, reply: bytes) -> None:
        """Handle a message that is already here, or was."""
        known = self.held.get(sequence)
        if known is not None:
            known.handle = reply
        else:
            self._last_ack = reply
            self._send([ACK_LINE % reply])

    def _skip(self, sequence: int, reply: bytes) -> None:
        """Leave a message to the consumer that reads only its topic."""
        self._settled[sequence] = None
        self._send([ACK_LINE % reply])

    def _without_done(self, operations: deque[Op], is_done: Callable[[int], bool]) -> deque[Op]:
        """Ack messages that another consumer has handled, and return the rest."""
        rest: deque[Op] = deque()
        for operation in operations:
            if is_done(sequence := stream_sequence(operation)):
                self.position = max(self.position, sequence)
                self._skip(sequence, operation[3])
            else:
                rest.append(operation)
        return rest

    def _pinned(self, operation: Op) -> None:
        """Remember the pin; before it was ours the messages may have been another's."""
        pin = header_block.get(operation[5][: operation[4]], PIN_ID.encode())
        if pin:
            self._pin = pin
            self.is_stale = self.is_stale or not self._is_recovering

    def _has_gap(self) -> bool:
        """Return whether messages went to another process since the last look."""
        first, last = (delivery_number(self._operations[index]) for index in (0, -1))
        expected, self._next_delivery = self._next_delivery, last + 1
        return first > expected or last - first >= len(self._operations)

    def _topic(self, subject: bytes) -> str:
        """Decode a subject once, later its topic is found in a cache; empty if it is excluded."""
        if len(self._topics) >= TOPICS_CACHED_MAX:
            self._topics.clear()
        topic = topic_of(subject.decode(errors="replace"))
        if self._is_excluded(topic):
            return ""
        self._topics[subject] = topic
        return topic

    def _is_excluded(self, topic: str) -> bool:
        return any(matches(one, topic) for one in self.excluded)

    async def _take_back(self) -> None:
        deadline_s = monotonic() + self._config.ack_wait + GRACE_S
        self._found += self.take()
        while (missing := await self._recall()) > 0:
            if self._is_closed or not self._is_ours():
                return
            if monotonic() > deadline_s:
                logger.warning("! %d messages of `%s` did not come back", missing, self.durable)
                break
            self._request(missing)
            await self._settle_down()
            self._found += self.take()
        self.is_stale = False

    async def _mend(self) -> int:
        """
        Repeat acks that a lost connection swallowed or a killed server forgot.

        Return the last sequence that the server knows it has sent.
        """
        info = await self.info()
        self._answer_for(State.of(info), asked_back=False)
        last = max(self._settled, default=0)
        self._is_recovering = True
        try:
            # A server refuses acks of messages that it does not know it has sent.
            while State.of(info).last < last and field(info, "num_pending", int):
                if not self._is_ours():
                    raise ClientError(f"`{self.durable}` is not ours at the moment")
                self._request(self._config.fetch_batch)
                await self._settle_down()
                self._found += self.take()
                info = await self.info()
        finally:
            self._is_recovering = False
            others, self._found = self._found, []
            self.give_back(others)
        return State.of(info).last

    async def _recall(self) -> int:
        """Ask the server to resend all missing messages now; return their number."""
        try:
            state = await self.state()
        except (ClientError, JetStreamError) as error:
            logger.info("= `%s` cannot be asked yet: %s", self.stream, error)
            await asyncio.sleep(self._config.fetch_wait)
            return 1
        floor, last, consumer_sequence, pending = state
        known = sum(1 for sequence in self.held if floor < sequence <= last)
        missing = min(pending - known, RECALLED_MAX)
        if missing > 0:
            self._answer_for(state)
        self.position = max(self.position, last)
        self._next_delivery = consumer_sequence + 1
        return missing

    def _answer_for(self, state: State, *, asked_back: bool = True) -> None:
        """Ack the finished messages, and ask for the missing ones again."""
        floor, last, consumer_sequence, _ = state
        # A server finds the message by its stream sequence; of the rest of the subject
        # it wants only a consumer sequence that it has given out.
        lines = []
        for sequence in range(floor + 1, min(last, floor + RECALLED_MAX) + 1):
            is_settled = sequence in self._settled
            if is_settled or (asked_back and sequence not in self.held):
                line = ACK_LINE if is_settled else NAK_LINE
                subject = f"{self.stream}.{self.durable}.1.{sequence}.{consumer_sequence}.0.0"
                lines.append(line % f"{wellknown.ACK}{subject}".encode())
        self._send(lines)

    async def _settle_down(self) -> None:
        """Return once the requested messages have come, or will not."""
        deadline_s = monotonic() + self._config.fetch_wait + GRACE_S
        while self.requested and self._client.connected and monotonic() < deadline_s:
            self._arrived.clear()
            try:
                async with asyncio.timeout(self._config.fetch_wait):
                    await self._arrived.wait()
            except TimeoutError:
                continue
        self._requests.forget()

    def _send(self, lines: list[bytes]) -> None:
        if lines:
            self._client.connection.outbox.add(b"".join(lines))


_sequence: Callable[[Delivery], int] = lambda delivery: delivery.sequence  # noqa: E731
