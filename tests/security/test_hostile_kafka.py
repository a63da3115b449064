"""Hostile records on Kafka: each is a dead letter, and the service goes on."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import pytest
from tests.aio import asynchronous, until
from tests.security.hostileevents import UNREADABLE, bombs, event

pytest.importorskip("confluent_kafka", reason="needs the extra `kafka`")

from confluent_kafka import Producer

from penstock.bus import BusConfig, Envelope, EventBus, SubscriberConfig
from penstock.bus.config.kafka import KafkaConfig, KafkaConsumerConfig
from penstock.bus.deadletters.stored import DeadLetterBox
from penstock.bus.testing.kafka import KafkaBroker

WAIT_S = 50.0
HEADERS: list[list[tuple[str, str | bytes | None]]] = [
    [("X", b"a\r\nNats-Msg-Id: b")],
    [("X\r\nY", b"z")],
    [("", b"no name")],
    [("a:b", b"c")],
    [("X", None)],
    [("X", b"\xff\xfe\x00")],
    [("Dead-Letter-Topic", b"payments")],
    [(f"X-{number}", b"y") for number in range(3000)],
]


@asynchronous
async def test_every_hostile_record_is_a_dead_letter(kafka: KafkaBroker) -> None:
    config = BusConfig(
        type="kafka",
        namespace=f"n{uuid.uuid4().hex[:12]}",
        kafka=KafkaConfig(
            brokers=(kafka.address,), consumer=KafkaConsumerConfig(discovery_interval=0.3)
        ),
        subscriber=SubscriberConfig(max_attempts=2, backoff=0.001),
    )
    amounts: list[int] = []

    async def handle(envelope: Envelope[dict[str, Any]]) -> None:
        amounts.append(envelope.payload["amount"])

    values: list[bytes | None] = [*UNREADABLE.values(), *bombs().values(), None]
    values += [b"x" * (900 << 10)]
    keys = [b"", b"\xff\xfe", None, b"k" * 10_000]
    async with EventBus(config) as bus:
        await bus.subscribe_envelope("orders", handle)
        await bus.publish_envelope(
            "orders", Envelope(aggregate_id="a", event_type="order", payload={"amount": 1})
        )
        await until(lambda: amounts == [1], WAIT_S)
        producer = Producer(
            {"bootstrap.servers": kafka.address, "message.max.bytes": 2_000_000},
            logger=logging.getLogger("test"),
        )
        name = f"{config.namespace}.orders"
        for number, value in enumerate(values):
            producer.produce(name, value, keys[number % len(keys)])
        for headers in HEADERS:
            producer.produce(name, b"garbage", headers=headers)
        producer.produce(name, event(payload={"amount": 2}))
        assert 0 == producer.flush(WAIT_S)
        hostile = len(values) + len(HEADERS)
        await until(lambda: bus.metrics.dead_letters_total == hostile, WAIT_S)
        await until(lambda: amounts == [1, 2], WAIT_S)
        letters = [letter async for letter in DeadLetterBox(bus).find()]

    assert hostile == len(letters)
    assert {"orders"} == {letter.topic for letter in letters}
