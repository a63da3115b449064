"""The options of a source on Kafka, and the topics its patterns stand for."""

from __future__ import annotations

import re

import pytest

from penstock.spark.kafka import is_kafka, namespace_of, topic_pattern


@pytest.mark.parametrize(
    ("topics", "name", "matches"),
    [
        (">", "events.orders.placed", True),
        (">", "other.orders.placed", False),
        ("orders.*", "events.orders.placed", True),
        ("orders.*", "events.orders.placed.late", False),
        ("orders.>", "events.orders.placed.late", True),
        ("orders.>", "events.orders", False),
        ("orders.placed", "events.orders-placed", False),
        ("orders.placed, bills.>", "events.bills.paid", True),
    ],
)
def test_topics_are_found_by_pattern(topics: str, name: str, matches: bool) -> None:
    assert matches == bool(re.fullmatch(topic_pattern("events", topics), name))


def test_a_kafka_source_is_known_by_its_servers() -> None:
    assert is_kafka({"servers": "kafka://broker:9092"})
    assert not is_kafka({"servers": "nats://127.0.0.1:4222"})
    assert not is_kafka({})
    assert ("events", "mine") == (namespace_of({}), namespace_of({"namespace": "mine"}))
