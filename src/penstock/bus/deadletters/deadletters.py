"""
Dead letters: messages whose attempts are used up, kept with cause and history.

A dead letter is the message as it was, on the topic `dead-letters.<topic>`, with
headers that say where it came from and what went wrong, attempt by attempt.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from time import monotonic

from penstock.bus.config.bus import BusConfig
from penstock.bus.engine import Delivery, Engine, Headers
from penstock.bus.events.names import is_dead
from penstock.bus.operate.failures import STOPS
from penstock.bus.operate.metrics import Metrics
from penstock.bus.publisher import Publisher
from penstock.errors import BusError, JetStreamError, MessageTooLarge, PenstockError
from penstock.protocol import errorcodes

logger = logging.getLogger("penstock.bus")

TOPIC = "Dead-Letter-Topic"
SEQUENCE = "Dead-Letter-Sequence"
KEY = "Dead-Letter-Key"
TIME = "Dead-Letter-Time"
CAUSE = "Dead-Letter-Cause"
SERVICE = "Dead-Letter-Service"
"""The service that gave the message up."""
CUT = "Dead-Letter-Cut"
"""How many bytes the message had, if they were too many for a dead letter."""
ATTEMPT = "Dead-Letter-Attempt"
"""Once per attempt, oldest first: the history."""
TRACE = "Dead-Letter-Traceback"
"""Where the last attempt failed: a string of JSON, because a header is one line."""

NOT_STORED = errorcodes.STREAM_STORE_FAILED.err_code
"""The error code of JetStream for a message it did not store: here, the stream is full."""
HINT = "hint: `penstock dlq list`, then replay or discard them, or raise `max_dead_letters`"
LOOK_EVERY_S = 5.0
LOOK_GAP_S = 0.5
"""The shortest time between two looks: dead letters may come by the thousand."""
WARN_EVERY_S = 10.0
WARNED_PART = 0.5

PREFIX = "dead-letter-"
"""The prefix of headers reserved for the bus: they name the topic a dead letter returns to."""

TEXT_CHARACTERS_MAX = 1000
ATTEMPTS_MAX = 50


class DeadLetters:
    """Stores messages that could not be handled."""

    def __init__(
        self, engine: Engine, publisher: Publisher, *, config: BusConfig, metrics: Metrics
    ) -> None:
        self._engine = engine
        self._publisher = publisher
        self._metrics = metrics
        self._prefix = config.subscriber.dead_letter_prefix
        self._letters_max = config.subscriber.max_dead_letters
        self._service = config.service
        self._warn_s = -inf
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Count the dead letters from now on: others discard them, and make some, too."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Stop counting."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    def topic(self, topic: str) -> str:
        """Return the dead-letter topic of a topic."""
        return f"{self._prefix}.{topic}"

    def is_dead_letter_topic(self, topic: str) -> bool:
        """Return whether a topic is a dead-letter topic."""
        return is_dead(topic, self._prefix)

    async def bury(self, delivery: Delivery) -> None:
        """Store a message as a dead letter; return once it is stored, and stored once."""
        if self.is_dead_letter_topic(delivery.topic):
            # It stays where it is. A copy would come to the same handler, and so on forever.
            logger.error("! a dead letter of `%s` cannot be handled either", delivery.topic)
            return
        try:
            await self._keep(delivery)
        except JetStreamError as error:
            if error.err_code != NOT_STORED:
                raise
            raise BusError(f"no room for a dead letter ({error.description}); {HINT}") from error
        finally:
            self._changed.set()
            await self._warn()

    async def _watch(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self._look()
            except STOPS:
                raise
            except BaseException:
                logger.exception("! counting the dead letters failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()
            await asyncio.sleep(LOOK_GAP_S)

    async def _look(self) -> None:
        try:
            self._metrics.dead_letters = await self._engine.count_dead_letters()
        except PenstockError as error:
            logger.info("= the dead letters cannot be counted: %s", error)

    async def _warn(self) -> None:
        """Say now and then that there are many dead letters, while more come."""
        if monotonic() < self._warn_s:
            return
        self._warn_s = monotonic() + WARN_EVERY_S
        await self._look()
        if self._metrics.dead_letters >= self._letters_max * WARNED_PART:
            logger.warning(
                "! %d dead letters are kept, of %d at most; %s",
                self._metrics.dead_letters,
                self._letters_max,
                HINT,
            )

    async def _keep(self, delivery: Delivery) -> None:
        *forms, last = forms_of(delivery)
        for payload, headers in forms:
            with suppress(MessageTooLarge):
                return await self._store(delivery, payload, headers)
        await self._store(delivery, *last)

    async def _store(self, delivery: Delivery, payload: bytes, headers: Headers) -> None:
        await self._publisher.store(
            self.topic(delivery.topic),
            payload,
            key=delivery.key,
            headers=[*headers, (SERVICE, self._service)],
            message_id=self._message_id(delivery),
        )

    def _message_id(self, delivery: Delivery) -> str:
        if not delivery.sequence:
            return ""
        stream = delivery.source.stream if delivery.source is not None else ""
        return f"dead-letter:{self._service}:{stream}:{delivery.sequence}"


def forms_of(delivery: Delivery) -> list[tuple[bytes, Headers]]:
    """
    Return the payload and headers of a dead letter, from the best form to the smallest.

    Its headers may leave too little room for the payload. Whole, it would be tried forever;
    cut, it still says where the whole message is.
    """
    own, told, history = own_headers_of(delivery), told_of(delivery), history_of(delivery)
    payload = delivery.payload
    cut, size = payload[: len(payload) // 2], (CUT, str(len(payload)))
    return [
        (payload, [*own, *told, *history]),
        (payload, [*own, *told]),
        (cut, [*own, *told, size, *history]),
        (cut, [*told, size]),
    ]


def own_headers_of(delivery: Delivery) -> Headers:
    """Return the headers that the message had before it was given up."""
    pairs = delivery.sendable_headers
    return [pair for pair in pairs if not pair[0].lower().startswith(PREFIX)]


def told_of(delivery: Delivery) -> Headers:
    """Return the headers that say what was given up, when, and why."""
    return [
        (TOPIC, delivery.topic),
        (SEQUENCE, str(delivery.sequence)),
        (KEY, _one_line(delivery.key)),
        (TIME, datetime.now(UTC).isoformat()),
        (CAUSE, _one_line(delivery.failures[-1]) if delivery.failures else ""),
    ]


def history_of(delivery: Delivery) -> Headers:
    """Return the headers that say how each attempt failed, and where the last one did."""
    attempts = [(ATTEMPT, _one_line(failure)) for failure in delivery.failures[-ATTEMPTS_MAX:]]
    return [*attempts, *([(TRACE, json.dumps(delivery.trace))] if delivery.trace else [])]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:TEXT_CHARACTERS_MAX]
