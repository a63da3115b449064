"""
OpenTelemetry: a span for every publish and every attempt, one trace across processes.

The context travels as W3C `traceparent` and `tracestate` in the headers of a message,
so a consumer in any language continues the trace. Without this nothing is added to a
message. Needs `opentelemetry-api`; where spans go is up to the program's SDK.

    async with EventBus.open("nats://…") as bus:
        trace(bus)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from penstock.bus.bus import EventBus
from penstock.bus.config.bus import BusConfig
from penstock.bus.engine import Delivery, Outgoing
from penstock.errors import MissingExtra
from penstock.protocol import headers as header_block


def trace(bus: EventBus, *, tracer_provider: Any = None) -> None:
    """Make an open bus create spans, with the global provider unless another is given."""
    Tracing(bus.config, tracer_provider).install(bus)


class Tracing:
    """Makes the spans of one bus."""

    def __init__(self, config: BusConfig, tracer_provider: Any = None) -> None:
        try:
            self._api = import_module("opentelemetry.trace")
            self._propagate = import_module("opentelemetry.propagate")
        except ImportError:
            raise MissingExtra(
                "tracing needs a package; hint: pip install opentelemetry-api"
            ) from None
        self._service = config.service
        self._system = "kafka" if config.type == "kafka" else "nats"
        self._tracer = self._api.get_tracer("penstock.bus", tracer_provider=tracer_provider)

    def install(self, bus: EventBus) -> None:
        """Watch the outgoing and incoming messages of a bus."""
        bus.instrument(outgoing=self.outgoing, delivery=self.delivery)

    def outgoing(self, message: Outgoing) -> None:
        """Make the span of a publish, and put its context into the headers."""
        attributes = self._attributes(message.topic, "send")
        if message.envelope is not None:
            attributes["messaging.message.id"] = message.envelope.event_id
        pairs = header_block.decode(message.block) if message.block else []
        span = self._tracer.start_span(
            f"send {message.topic}",
            context=self._context(dict(pairs)),
            kind=self._api.SpanKind.PRODUCER,
            attributes=attributes,
        )
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, context=self._api.set_span_in_context(span))
        others = [pair for pair in pairs if pair[0] not in carrier]
        message.block = header_block.encode([*others, *carrier.items()])
        span.end()

    def _context(self, headers: dict[str, str]) -> Any:
        """Return the trace of the program, or else of a message that is sent on, as a letter is."""
        is_traced = self._api.get_current_span().get_span_context().is_valid
        return None if is_traced else self._propagate.extract(headers)

    def delivery(self, delivery: Delivery) -> None:
        """Make each attempt at a message a span, in the trace of its publisher."""
        delivery.subscription = _Traced(delivery.subscription, delivery, self._attempt)

    async def _attempt(
        self, delivery: Delivery, call: Callable[[Any], Awaitable[Any]], event: Any
    ) -> Any:
        attributes = self._attributes(delivery.topic, "process")
        attributes["messaging.consumer.group.name"] = self._service
        attributes["penstock.key"] = delivery.key
        attributes["penstock.attempt"] = delivery.attempts + 1
        with self._tracer.start_as_current_span(
            f"process {delivery.topic}",
            context=self._propagate.extract(dict(delivery.headers)),
            kind=self._api.SpanKind.CONSUMER,
            attributes=attributes,
        ):
            return await call(event)

    def _attributes(self, topic: str, operation: str) -> dict[str, Any]:
        return {
            "messaging.system": self._system,
            "messaging.destination.name": topic,
            "messaging.operation.type": operation,
            "messaging.operation.name": operation,
        }


class _Traced:
    """The subscription of one message, whose calls are spans."""

    __slots__ = ("_around", "_delivery", "_subscription")

    def __init__(
        self, subscription: Any, delivery: Delivery, around: Callable[..., Awaitable[Any]]
    ) -> None:
        self._subscription = subscription
        self._delivery = delivery
        self._around = around

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subscription, name)

    async def call(self, event: Any) -> Any:
        """Call the handler, inside a span."""
        return await self._around(self._delivery, self._subscription.call, event)
