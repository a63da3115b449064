"""The small parts of the bus that need no broker."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bus import HealthConfig, TopicOptions
from penstock.bus.engine import TopicState
from penstock.bus.engines.nats.layout import Layout, durable_of, pattern_of, topic_of
from penstock.bus.events.names import check_headers, check_pattern, check_topic
from penstock.bus.operate.metrics import Metrics
from penstock.bus.ratelimit import RateLimit
from penstock.bus.topics.topics import compare
from penstock.errors import BusError, ConfigError


@pytest.mark.parametrize("topic", ["a", "orders.created", "a-b_c:d=e.1", "x" * 255])
def test_these_are_topics(topic: str) -> None:
    assert topic == check_topic(topic)
    assert topic == check_pattern(topic)


@pytest.mark.parametrize(
    "topic", ["", ".", "a.", "a b", "a.*", ">", "a/b", "ü", "x" * 256, None, 5, b"a"]
)
def test_these_are_not(topic: Any) -> None:
    with pytest.raises(BusError, match="no topic"):
        check_topic(topic)


@pytest.mark.parametrize("pattern", [None, 5, b"a.*"])
def test_these_are_no_patterns_either(pattern: Any) -> None:
    with pytest.raises(BusError, match="no topic"):
        check_pattern(pattern)


def test_headers_are_pairs() -> None:
    with pytest.raises(BusError, match=r"headers\.items"):
        check_headers({"a": "b"})  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", [">", "*", "a.*", "*.a", "a.*.b", "a.>"])
def test_these_are_patterns(pattern: str) -> None:
    assert pattern == check_pattern(pattern)


@pytest.mark.parametrize("pattern", ["", "a.>.b", "a*", "a..b", "é.*"])
def test_these_are_no_patterns(pattern: str) -> None:
    with pytest.raises(BusError):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "durable"),
    [
        ("orders.created", "billing+orders+created"),
        ("orders.*", "billing+orders+@"),
        ("*.a.>", "billing+@+a+@@"),
        (">", "billing+@@"),
    ],
)
def test_a_consumer_is_named_after_its_service_and_pattern(pattern: str, durable: str) -> None:
    assert durable == durable_of("billing", pattern)
    assert pattern == pattern_of("billing", durable)
    assert "" == pattern_of("bill", durable)


def test_the_names_of_a_topic_on_nats() -> None:
    layout = Layout("events")

    assert ("events.a.b", "events-own.a.b", "events-live.a.b", "events-own+a+b") == (
        layout.subject("a.b"),
        layout.own_subject("a.b"),
        layout.live_subject("a.b"),
        layout.own_stream("a.b"),
    )
    assert "a.b" == topic_of("events-own.a.b")


def test_a_rate_limit_lets_a_burst_go_and_then_one_at_a_time() -> None:
    now_s = 100.0
    limit = RateLimit(10.0, burst=3, clock_s=lambda: now_s)

    waits = [round(limit.wait_s(), 6) for _ in range(5)]
    now_s = 200.0

    assert [0.0, 0.0, 0.0, 0.1, 0.2] == waits
    assert 0.0 == limit.wait_s()


def test_only_what_was_asked_for_can_drift() -> None:
    state = TopicState(options=TopicOptions(max_msgs=10, retention=60.0, replicas=1), shared=False)

    assert () == compare(TopicOptions(), state)
    assert () == compare(TopicOptions(retention=60.5), state)
    drifts = compare(TopicOptions(max_msgs=20, replicas=3), state)
    assert [("max_msgs", True), ("replicas", False)] == [
        (drift.field, drift.fixable) for drift in drifts
    ]
    assert "needs a new topic" in str(drifts[1])


def test_counters_are_written_as_prometheus_reads_them() -> None:
    text = Metrics(handled_total=3, in_flight=2).prometheus()

    assert "# TYPE penstock_bus_handled_total counter\npenstock_bus_handled_total 3\n" in text
    assert "# TYPE penstock_bus_in_flight gauge\npenstock_bus_in_flight 2\n" in text
    assert "# HELP penstock_bus_handled_total Calls of handlers that succeeded.\n" in text


def test_the_time_of_handlers_is_a_histogram() -> None:
    metrics = Metrics()
    for duration_s in (0.0005, 0.001, 0.3, 60.0):
        metrics.handler_seconds.record(duration_s)

    lines = metrics.prometheus().splitlines()

    assert 'penstock_bus_handler_seconds_bucket{le="0.001"} 2' in lines
    assert 'penstock_bus_handler_seconds_bucket{le="0.25"} 2' in lines
    assert 'penstock_bus_handler_seconds_bucket{le="0.5"} 3' in lines
    assert 'penstock_bus_handler_seconds_bucket{le="+Inf"} 4' in lines
    assert "penstock_bus_handler_seconds_count 4" in lines
    assert "penstock_bus_handler_seconds_sum 60.301500" in lines


def test_thresholds_of_health_must_increase() -> None:
    with pytest.raises(ConfigError, match="increase"):
        HealthConfig(warning_misses=5, error_misses=5)
