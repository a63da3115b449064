"""Advisories and metrics of one account: `$JS.EVENT.ADVISORY.>` and `$JS.EVENT.METRIC.>`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.protocol.rfc3339 import format_time

if TYPE_CHECKING:
    from penstock.core.account import Account

ADVISORY = "$JS.EVENT.ADVISORY"
METRIC = "$JS.EVENT.METRIC"
TYPES = {ADVISORY: "io.nats.jetstream.advisory.v1", METRIC: "io.nats.jetstream.metric.v1"}
PAST = {"create": "CREATED", "delete": "DELETED", "modify": "UPDATED"}


class Advisories:
    """Publishes events about the streams and consumers of one account."""

    def __init__(
        self,
        account: Account,
        *,
        domain: str,
        clock_ns: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._account = account
        self._domain = domain
        self._clock_ns = clock_ns
        self._new_id = new_id

    def stream_action(self, stream: str, action: str) -> None:
        """Announce that a stream was created, modified or deleted."""
        self.send(f"STREAM.{PAST[action]}.{stream}", "stream_action", stream=stream, action=action)

    def consumer_action(self, stream: str, consumer: str, action: str) -> None:
        """Announce that a consumer was created or deleted."""
        self.send(
            f"CONSUMER.{PAST[action]}.{stream}.{consumer}",
            "consumer_action",
            stream=stream,
            consumer=consumer,
            action=action,
        )

    def metric(self, subject: str, kind: str, **fields: Any) -> None:
        """Publish one metric, if anybody listens."""
        self._publish(METRIC, subject, kind, fields)

    def batch_abandoned(self, stream: str, batch: str, reason: str) -> None:
        """Announce that an atomic batch will not be stored."""
        subject = f"STREAM.BATCH_ABANDONED.{stream}"
        self.send(subject, "stream_batch_abandoned", stream=stream, batch=batch, reason=reason)

    def send(self, subject: str, kind: str, **fields: Any) -> None:
        """Publish one advisory, if anybody listens."""
        self._publish(ADVISORY, subject, kind, fields)

    def _publish(self, prefix: str, subject: str, kind: str, fields: dict[str, Any]) -> None:
        target = f"{prefix}.{subject}".encode()
        if self._account.has_interest(target):
            self._account.send(target, self.encode(prefix, kind, fields))

    def encode(self, prefix: str, kind: str, fields: dict[str, Any]) -> bytes:
        """Return an event as it is published: with its type, an id, the time and the domain."""
        event = {
            "type": f"{TYPES[prefix]}.{kind}",
            "id": self._new_id(),
            "timestamp": format_time(self._clock_ns()),
        } | fields
        if self._domain:
            event["domain"] = self._domain
        return json.dumps(event, separators=(",", ":")).encode()
