"""Tracing: one trace from the publisher through every attempt, in headers others understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.aio import asynchronous, until

from penstock.bus import BusConfig, Envelope, EventBus, SubscriberConfig
from penstock.bus.deadletters.stored import DeadLetterBox
from penstock.bus.engine import Outgoing
from penstock.bus.tracing import Tracing, trace

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="opentelemetry-sdk is not installed")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
api = pytest.importorskip("opentelemetry.trace")

EVENT = Envelope(aggregate_id="k", event_type="t", payload=1)


class Spans:
    """A provider that keeps its spans."""

    def __init__(self) -> None:
        self._kept = memory.InMemorySpanExporter()
        self.provider = sdk.TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(export.SimpleSpanProcessor(self._kept))

    def named(self, name: str) -> list[Any]:
        return [span for span in self._kept.get_finished_spans() if span.name == name]


@asynchronous
async def test_publish_and_every_attempt_are_one_trace(tmp_path: Path) -> None:
    spans, calls = Spans(), []
    quick = SubscriberConfig(backoff=0.001)

    async def fail_once(_: Envelope[Any]) -> None:
        calls.append(api.get_current_span().get_span_context())
        if len(calls) == 1:
            raise ValueError("not yet")

    async with EventBus.open(f"embedded:{tmp_path}", subscriber=quick) as bus:
        trace(bus, tracer_provider=spans.provider)
        await bus.subscribe_envelope("orders", fail_once)
        await bus.publish_envelope("orders", EVENT)
        await until(lambda: len(spans.named("process orders")) == 2)
    (sent,) = spans.named("send orders")
    first, second = spans.named("process orders")

    assert {sent.context.trace_id} == {context.trace_id for context in calls}
    assert [sent.context.span_id] * 2 == [span.parent.span_id for span in (first, second)]
    assert [1, 2] == [span.attributes["penstock.attempt"] for span in (first, second)]
    assert (False, True) == tuple(span.status.is_ok for span in (first, second))
    assert ("nats", "orders") == (
        sent.attributes["messaging.system"],
        sent.attributes["messaging.destination.name"],
    )


def test_the_broker_is_named_by_its_kind() -> None:
    spans = Spans()
    message = Outgoing("orders", b"", EVENT, b"")

    Tracing(BusConfig(type="kafka"), spans.provider).outgoing(message)

    assert "kafka" == spans.named("send orders")[0].attributes["messaging.system"]


@asynchronous
async def test_the_context_is_w3c_and_joins_the_publishers_own_trace(tmp_path: Path) -> None:
    spans = Spans()
    async with EventBus.open(f"embedded:{tmp_path}") as bus:
        trace(bus, tracer_provider=spans.provider)
        tracer = spans.provider.get_tracer("program")
        with tracer.start_as_current_span("request") as request:
            await bus.publish_envelope_sync("orders", EVENT)
            await bus.publish("raw", b"bytes")
        stored = [
            delivery
            for topic in ("orders", "raw")
            async for deliveries in bus.engine.replay(topic, _everything())
            for delivery in deliveries
        ]
    trace_id = f"{request.get_span_context().trace_id:032x}"

    assert [f"00-{trace_id}"] * 2 == [(one.header("traceparent") or "")[:35] for one in stored]
    assert f"orders:{EVENT.event_id}" == stored[0].header("Nats-Msg-Id")


@asynchronous
async def test_a_dead_letter_stays_in_the_trace_of_its_event(tmp_path: Path) -> None:
    spans = Spans()

    async def fail(_: Envelope[Any]) -> None:
        raise ValueError("never")

    once = SubscriberConfig(max_attempts=1)
    async with EventBus.open(f"embedded:{tmp_path}", subscriber=once) as bus:
        trace(bus, tracer_provider=spans.provider)
        await bus.subscribe_envelope("orders", fail)
        await bus.publish_envelope("orders", EVENT)
        await until(lambda: bus.metrics.dead_letters_total == 1)
        (letter,) = [letter async for letter in DeadLetterBox(bus).find()]
    (sent,), (buried,) = spans.named("send orders"), spans.named("send dead-letters.orders")
    carried = [value for name, value in letter.headers if name == "traceparent"]

    assert (sent.context.trace_id, sent.context.span_id) == (
        buried.context.trace_id,
        buried.parent.span_id,
    )
    assert [f"{buried.context.span_id:016x}"] == [value.split("-")[2] for value in carried]


@asynchronous
async def test_a_plain_function_sees_the_span_on_its_thread(tmp_path: Path) -> None:
    spans, seen = Spans(), []

    def handle(_: Envelope[Any]) -> None:
        seen.append(api.get_current_span().get_span_context().trace_id)

    async with EventBus.open(f"embedded:{tmp_path}") as bus:
        trace(bus, tracer_provider=spans.provider)
        await bus.subscribe_envelope("orders", handle)
        await bus.publish_envelope("orders", EVENT)
        await until(lambda: seen)

    assert [spans.named("send orders")[0].context.trace_id] == seen


def _everything() -> Any:
    from penstock.bus.engine import ReplayFrom

    return ReplayFrom()
