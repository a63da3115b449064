"""Tell whoever listens what happened: `$JS.EVENT.ADVISORY.>`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.jetstream.times import format_time

if TYPE_CHECKING:
    from penstock.jetstream.engine import Engine

PREFIX = "$JS.EVENT.ADVISORY"
TYPE_PREFIX = "io.nats.jetstream.advisory.v1"
PAST = {"create": "CREATED", "delete": "DELETED", "modify": "UPDATED", "pause": "PAUSE"}


class Advisories:
    """Events about the streams and consumers of one account."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def stream_action(self, stream: str, action: str) -> None:
        """Say that a stream was created, modified or deleted."""
        self.send(f"STREAM.{PAST[action]}.{stream}", "stream_action", stream=stream, action=action)

    def consumer_action(self, stream: str, consumer: str, action: str) -> None:
        """Say that a consumer was created or deleted."""
        self.send(
            f"CONSUMER.{PAST[action]}.{stream}.{consumer}",
            "consumer_action",
            stream=stream,
            consumer=consumer,
            action=action,
        )

    def send(self, subject: str, kind: str, **fields: Any) -> None:
        """Publish one event, if anybody wants to know."""
        target = f"{PREFIX}.{subject}".encode()
        account = self._engine.account
        if not account.has_interest(target):
            return
        event = {
            "type": f"{TYPE_PREFIX}.{kind}",
            "id": self._engine.new_id(),
            "timestamp": format_time(self._engine.clock_ns()),
        }
        account.send(target, json.dumps(event | fields, separators=(",", ":")).encode())
