"""
Dead letters that are stored: look at them, send them back, or throw them away.

Sending one back publishes it to its topic again, so it comes behind everything the
key has had since, and every service that reads the topic gets it, not only the one
that gave it up; an `Inbox` makes that harmless. It happens once, also if it is
interrupted and done again: the copy carries an id made of the dead letter's place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from typing import Any

from penstock.bus.bus import EventBus
from penstock.bus.deadletters.deadletters import (
    ATTEMPT,
    CAUSE,
    CUT,
    KEY,
    SEQUENCE,
    SERVICE,
    TIME,
    TOPIC,
    TRACE,
)
from penstock.bus.engine import Delivery, Headers, ReplayFrom
from penstock.bus.events.envelope import Envelope
from penstock.bus.events.names import check_moment
from penstock.bus.handlers import Handler, Subscription
from penstock.bus.replaying import Threads
from penstock.errors import BusError, InvalidEnvelope, MessageTooLarge
from penstock.protocol import headers as header_block

DEAD_LETTER_HEADERS = frozenset((ATTEMPT, CAUSE, CUT, KEY, SEQUENCE, SERVICE, TIME, TOPIC, TRACE))


NUMBER_DIGITS_MAX = 20


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """One message that was given up, with the cause and the time."""

    number: int
    """Its sequence on the dead-letter topic; operators name it by this number."""
    place: str
    """The dead-letter topic."""
    topic: str
    """The topic it came from."""
    sequence: int
    """Its sequence on that topic."""
    service: str
    """The service that gave it up."""
    key: str
    time: datetime
    cause: str
    attempts: tuple[str, ...]
    """How each attempt failed, oldest first."""
    trace: str
    """The traceback of the last failure; empty if none was kept."""
    headers: Headers
    """The headers of the original message."""
    payload: bytes
    envelope: Envelope[Any] | None
    """The event; None if it cannot be read, which may be the cause."""
    cut_from: int = 0
    """How many bytes it had, if it was too large to be kept whole."""

    @property
    def event_type(self) -> str:
        """The event's type; empty if it cannot be read."""
        return self.envelope.event_type if self.envelope is not None else ""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Criteria for dead letters. A field left out matches all."""

    topic: str = ""
    service: str = ""
    key: str = ""
    event_type: str = ""
    since: datetime | None = None
    until: datetime | None = None
    numbers: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        check_moment("since", self.since)
        check_moment("until", self.until)

    def __contains__(self, letter: DeadLetter) -> bool:
        return (
            (not self.topic or self.topic == letter.topic)
            and (not self.service or self.service == letter.service)
            and (not self.key or self.key == letter.key)
            and (not self.event_type or self.event_type == letter.event_type)
            and (self.since is None or letter.time >= self.since)
            and (self.until is None or letter.time < self.until)
            and (not self.numbers or letter.number in self.numbers)
        )


class DeadLetterBox:
    """The dead letters of a bus. It must be open."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._prefix = bus.config.subscriber.dead_letter_prefix

    async def find(self, selection: Selection | None = None) -> AsyncGenerator[DeadLetter, None]:
        """Iterate over dead letters, oldest first."""
        wanted = selection or Selection()
        pattern = f"{self._prefix}.{wanted.topic or '>'}"
        replay = self._bus.engine.replay(pattern, ReplayFrom(time=wanted.since))
        async with aclosing(replay) as stored:
            async for deliveries in stored:
                for letter in map(self._read, deliveries):
                    if letter in wanted:
                        yield letter

    async def show(self, number: int, *, topic: str = "") -> DeadLetter:
        """Return one dead letter; on Kafka several topics may have one of that number."""
        letters = await self._choose(Selection(numbers=frozenset((number,)), topic=topic))
        if not letters:
            raise BusError(f"there is no dead letter {number}")
        return letters[0]

    async def replay(self, selection: Selection) -> list[DeadLetter]:
        """Send dead letters back to their topics, in order; return them."""
        return [letter async for letter in self.replaying(selection)]

    async def replaying(self, selection: Selection) -> AsyncGenerator[DeadLetter, None]:
        """
        Send dead letters back to their topics, in order; iterate over those that went.

        A letter that was sent back is deleted, so an interrupted replay continues where it
        was when it is started again. Cancelled once, the replay finishes the current letter;
        cancelled twice, it ends at once.
        """
        async with aclosing(self._whole(selection)) as letters:
            async for letter in letters:
                is_cancelled = await _undivided(self._send_back(letter))
                yield letter
                if is_cancelled:
                    raise asyncio.CancelledError

    async def handle(self, handler: Handler, selection: Selection) -> list[DeadLetter]:
        """
        Call a handler of this program with dead letters, in order, and discard each it took.

        No other service sees them again. An error of the handler ends the run, and its
        letter stays.
        """
        handled = []
        with Threads() as threads:
            called = Subscription(">", handler, timeout_s=inf, threads=threads.get)
            async with aclosing(self._whole(selection)) as letters:
                async for letter in letters:
                    await self._hand(called, letter)
                    handled.append(letter)
        return handled

    async def discard(self, selection: Selection) -> list[DeadLetter]:
        """Delete dead letters for good; return them."""
        return [letter async for letter in self.discarding(selection)]

    async def discarding(self, selection: Selection) -> AsyncGenerator[DeadLetter, None]:
        """Delete dead letters for good; iterate over those that are gone."""
        for letter in await self._choose(selection):
            is_cancelled = await _undivided(self._bus.engine.discard(letter.place, letter.number))
            yield letter
            if is_cancelled:
                raise asyncio.CancelledError

    async def _hand(self, called: Subscription, letter: DeadLetter) -> None:
        block = header_block.encode(letter.headers) if letter.headers else b""
        delivery = Delivery(letter.topic, letter.payload, block, sequence=letter.sequence)
        called.open(delivery, self._bus.codec)
        await called.call(delivery.event)
        if await _undivided(self._bus.engine.discard(letter.place, letter.number)):
            raise asyncio.CancelledError

    async def _whole(self, selection: Selection) -> AsyncGenerator[DeadLetter, None]:
        """Iterate over letters as they were; raise in the end if of some only a part is left."""
        lost = []
        for letter in await self._choose(selection):
            whole = await self._mended(letter) if letter.cut_from else letter
            if whole is None:
                lost.append(str(letter.number))
            else:
                yield whole
        if lost:
            raise BusError(
                f"dead letters have lost their end, as they were too large to be kept, and their "
                f"topics have them no more: {', '.join(lost)}; hint: `dlq show`, and `dlq discard`"
            )

    async def _mended(self, letter: DeadLetter) -> DeadLetter | None:
        """Return a letter with the whole message, if its topic still has it."""
        start = ReplayFrom(sequence=letter.sequence)
        async with aclosing(self._bus.engine.replay(letter.topic, start)) as stored:
            async for deliveries in stored:
                for one in deliveries:
                    if one.sequence == letter.sequence and one.payload.startswith(letter.payload):
                        return replace(letter, payload=one.payload, headers=one.sendable_headers)
        return None

    async def _send_back(self, letter: DeadLetter) -> None:
        try:
            await self._publish(letter, message_id=f"replay:{letter.place}:{letter.number}")
        except MessageTooLarge:
            # It came without an id, and there is no room for one.
            await self._publish(letter)
        await self._bus.engine.discard(letter.place, letter.number)

    async def _publish(self, letter: DeadLetter, *, message_id: str = "") -> None:
        await self._bus.publish(
            letter.topic,
            letter.payload,
            key=letter.key,
            headers=letter.headers,
            message_id=message_id,
        )

    async def _choose(self, selection: Selection) -> list[DeadLetter]:
        """Return the selected dead letters; raise if a number stands for several."""
        letters = [letter async for letter in self.find(selection)]
        if selection.numbers and len({letter.number for letter in letters}) < len(letters):
            places = ", ".join(sorted({f"`{letter.topic}`" for letter in letters}))
            raise BusError(f"several topics have such a number: {places}; hint: name the topic")
        return letters

    def _read(self, delivery: Delivery) -> DeadLetter:
        first = dict(reversed(delivery.headers))
        topic = first.get(TOPIC, delivery.topic.removeprefix(f"{self._prefix}."))
        return DeadLetter(
            number=delivery.sequence,
            place=delivery.topic,
            topic=topic,
            sequence=_number(first.get(SEQUENCE, "")),
            service=first.get(SERVICE, ""),
            key=first.get(KEY, ""),
            time=_time(first.get(TIME, ""), delivery.timestamp_ns),
            cause=first.get(CAUSE, ""),
            attempts=tuple(value for name, value in delivery.headers if name == ATTEMPT),
            trace=_text(first.get(TRACE, "")),
            headers=[
                pair for pair in delivery.sendable_headers if pair[0] not in DEAD_LETTER_HEADERS
            ],
            payload=delivery.payload,
            envelope=self._decode(delivery.payload),
            cut_from=_number(first.get(CUT, "")),
        )

    def _decode(self, payload: bytes) -> Envelope[Any] | None:
        try:
            return self._bus.codec.decode(payload)
        except InvalidEnvelope:
            return None


async def _undivided(step: Awaitable[object]) -> bool:
    """Finish a step even if cancelled once; return whether it was. A second time stops it."""
    doing = asyncio.ensure_future(step)
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await doing
        return True
    return False


# Anyone can publish to a dead-letter topic; that must not hide the real dead letters.


def _text(document: str) -> str:
    try:
        text = json.loads(document)
    except (ValueError, RecursionError):
        return document
    return text if isinstance(text, str) else document


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX else 0


def _time(text: str, stored_ns: int) -> datetime:
    """Return when a message was given up; if it does not say, when it was stored."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(stored_ns / 1e9, UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
