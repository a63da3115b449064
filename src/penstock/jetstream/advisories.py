"""Tell whoever listens what happened: `$JS.EVENT.ADVISORY.>`, and how it goes: `METRIC`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from penstock.core.account import new_message
from penstock.core.reports.clientinfo import client_info
from penstock.hot.wire import Op
from penstock.protocol.rfc3339 import format_time

if TYPE_CHECKING:
    from penstock.jetstream.api.api import Request
    from penstock.jetstream.engine import Engine

ADVISORY = "$JS.EVENT.ADVISORY"
METRIC = "$JS.EVENT.METRIC"
TYPES = {ADVISORY: "io.nats.jetstream.advisory.v1", METRIC: "io.nats.jetstream.metric.v1"}
PAST = {"create": "CREATED", "delete": "DELETED", "modify": "UPDATED"}


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

    def api_audit(self, request: Request, response: bytes) -> list[Op]:
        """Return the message that tells of a request and its answer, if anybody listens."""
        engine, target = self._engine, f"{ADVISORY}.API".encode()
        if request.publisher is None or not engine.account.has_interest(target):
            return []
        fields: dict[str, Any] = {
            "server": engine.server_name,
            "client": client_info(request.publisher),
            "subject": request.subject,
            "request": request.body.decode(errors="replace"),
            "response": response.decode(),
        }
        if not request.body:
            del fields["request"]
        return [new_message(target, self._encode(ADVISORY, "api_audit", fields))]

    def metric(self, subject: str, kind: str, **fields: Any) -> None:
        """Publish one metric, if anybody wants to know."""
        self._publish(METRIC, subject, kind, fields)

    def batch_abandoned(self, stream: str, batch: str, reason: str) -> None:
        """Say that an atomic batch will not be stored."""
        subject = f"STREAM.BATCH_ABANDONED.{stream}"
        self.send(subject, "stream_batch_abandoned", stream=stream, batch=batch, reason=reason)

    def send(self, subject: str, kind: str, **fields: Any) -> None:
        """Publish one advisory, if anybody wants to know."""
        self._publish(ADVISORY, subject, kind, fields)

    def _publish(self, prefix: str, subject: str, kind: str, fields: dict[str, Any]) -> None:
        target = f"{prefix}.{subject}".encode()
        if self._engine.account.has_interest(target):
            self._engine.account.send(target, self._encode(prefix, kind, fields))

    def _encode(self, prefix: str, kind: str, fields: dict[str, Any]) -> bytes:
        engine = self._engine
        event = {
            "type": f"{TYPES[prefix]}.{kind}",
            "id": engine.new_id(),
            "timestamp": format_time(engine.clock_ns()),
        } | fields
        if engine.domain:
            event["domain"] = engine.domain
        return json.dumps(event, separators=(",", ":")).encode()
