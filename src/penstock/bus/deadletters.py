"""
Dead letters: messages whose attempts are used up, kept with cause and history.

A dead letter is the message as it was, on the topic `dead-letters.<topic>`, with
headers that say where it came from and what went wrong, attempt by attempt.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from penstock.bus.engine import Delivery, Headers
from penstock.bus.publisher import Publisher

logger = logging.getLogger("penstock.bus")

TOPIC = "Dead-Letter-Topic"
SEQUENCE = "Dead-Letter-Sequence"
KEY = "Dead-Letter-Key"
TIME = "Dead-Letter-Time"
CAUSE = "Dead-Letter-Cause"
SERVICE = "Dead-Letter-Service"
"""Who gave it up."""
ATTEMPT = "Dead-Letter-Attempt"
"""Once per attempt, oldest first: the history."""
TRACE = "Dead-Letter-Traceback"
"""Where the last attempt failed: a string of JSON, because a header is one line."""

TEXT_CHARACTERS_MAX = 1000
ATTEMPTS_MAX = 50


class DeadLetters:
    """Where messages go that could not be handled."""

    def __init__(self, publisher: Publisher, *, prefix: str, service: str) -> None:
        self._publisher = publisher
        self._prefix = prefix
        self._service = service

    def topic(self, topic: str) -> str:
        """Return the dead-letter topic of a topic."""
        return f"{self._prefix}.{topic}"

    def is_dead_letter_topic(self, topic: str) -> bool:
        """Tell whether a topic is one of dead letters."""
        return topic.startswith(f"{self._prefix}.")

    async def bury(self, delivery: Delivery) -> None:
        """Store a message as a dead letter; return once it is stored, and stored once."""
        if self.is_dead_letter_topic(delivery.topic):
            # It stays where it is. A copy would come to the same handler, and so on for ever.
            logger.error("! a dead letter of `%s` cannot be handled either", delivery.topic)
            return
        await self._publisher.publish(
            self.topic(delivery.topic),
            delivery.payload,
            key=delivery.key,
            headers=[*headers_of(delivery), (SERVICE, self._service)],
            message_id=self._message_id(delivery),
        )

    def _message_id(self, delivery: Delivery) -> str:
        if not delivery.sequence:
            return ""
        stream = delivery.source.stream if delivery.source is not None else ""
        return f"dead-letter:{self._service}:{stream}:{delivery.sequence}"


def headers_of(delivery: Delivery) -> Headers:
    """Return the message's own headers, and those that say why it is dead."""
    history = [_one_line(failure) for failure in delivery.failures[-ATTEMPTS_MAX:]]
    return [
        *delivery.own_headers,
        (TOPIC, delivery.topic),
        (SEQUENCE, str(delivery.sequence)),
        (KEY, _one_line(delivery.key)),
        (TIME, datetime.now(UTC).isoformat()),
        (CAUSE, history[-1] if history else ""),
        *((ATTEMPT, text) for text in history),
        *([(TRACE, json.dumps(delivery.trace))] if delivery.trace else []),
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:TEXT_CHARACTERS_MAX]
