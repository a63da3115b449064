"""Settings refuse values of another kind when they are made, not when they are used."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.bus import BusConfig, ConsumerConfig, NatsConfig, SubscriberConfig, TopicOptions
from penstock.bus.config.kafka import KafkaConfig
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "values", "what"),
    [
        (SubscriberConfig, {"max_attempts": "3"}, "a whole number, not a str"),
        (SubscriberConfig, {"max_attempts": 2.5}, "a whole number, not a float"),
        (SubscriberConfig, {"process_timeout": None}, "a number, not a NoneType"),
        (SubscriberConfig, {"process_timeout": True}, "a number, not a bool"),
        (SubscriberConfig, {"on_exhausted": "bury"}, "one of dead_letter, block, not 'bury'"),
        (ConsumerConfig, {"exclusive": "false"}, "True or False, not a str"),
        (NatsConfig, {"urls": "nats://localhost"}, "a tuple, each text, not a str"),
        (NatsConfig, {"password": b"secret"}, "text or None, not a bytes"),
        (KafkaConfig, {"properties": {"linger.ms": 5}}, "a mapping, each value text, not a dict"),
        (TopicOptions, {"retention": "7d"}, "a number or None, not a str"),
        (BusConfig, {"topics": {"t": {}}}, r"each value a `TopicOptions\(…\)`, not a dict"),
        (BusConfig, {"nats": {}}, r"a `NatsConfig\(…\)`, not a dict"),
    ],
)
def test_a_value_of_another_kind_is_refused(kind: Any, values: dict[str, Any], what: str) -> None:
    (name,) = values
    with pytest.raises(ConfigError, match=f"`{name}` must be .*{what}"):
        kind(**values)


def test_whole_numbers_and_lists_will_do() -> None:
    assert 30 == SubscriberConfig(process_timeout=30).process_timeout
    urls: Any = ["nats://a", "nats://b"]
    assert urls == NatsConfig(urls=urls).urls
