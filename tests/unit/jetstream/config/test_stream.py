"""The configuration of a stream: JSON in and out, defaults, what makes sense, what may change."""

from dataclasses import fields
from typing import Any

import pytest

from penstock.errors import JetStreamError
from penstock.jetstream.config import rules
from penstock.jetstream.config.stream import STREAM_REQUEST_FIELDS, StreamConfig
from penstock.protocol.version import API_LEVEL, NATS_VERSION

SECOND_NS = 1_000_000_000


def config(**options: Any) -> StreamConfig:
    return StreamConfig(**({"name": "S", "subjects": ("s.>",)} | options))


def checked_create(new: StreamConfig, **options: Any) -> StreamConfig:
    """Check a new stream where there is no other."""
    return rules.checked_create(new, lambda name: None, **options)


def checked_update(old: StreamConfig, new: StreamConfig, **options: Any) -> StreamConfig:
    """Check a change of a stream where there is no other."""
    return rules.checked_update(old, new, lambda name: None, **options)


def refusal(check: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(JetStreamError) as caught:
        check(*arguments, **options)
    return caught.value.description


def test_what_is_written_reads_back_as_the_same() -> None:
    original = checked_create(
        config(description="d", metadata={"a": "b"}, consumer_limits={"max_ack_pending": 5})
    )
    assert original == StreamConfig.from_json(original.to_json())


def test_every_option_has_a_kind_that_json_is_checked_against() -> None:
    assert {item.name for item in fields(StreamConfig)} | {"pedantic"} == set(STREAM_REQUEST_FIELDS)


def test_an_empty_configuration_gets_the_defaults_of_nats_server() -> None:
    answer = checked_create(StreamConfig(name="S")).to_answer()

    assert {
        "name": "S",
        "subjects": ["S"],
        "retention": "limits",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "discard": "old",
        "storage": "file",
        "num_replicas": 1,
        "duplicate_window": 120 * SECOND_NS,
        "compression": "none",
        "allow_direct": False,
        "mirror_direct": False,
        "sealed": False,
        "deny_delete": False,
        "deny_purge": False,
        "allow_rollup_hdrs": False,
        "consumer_limits": {},
        "allow_msg_ttl": False,
        "metadata": {
            "_nats.level": str(API_LEVEL),
            "_nats.req.level": "0",
            "_nats.ver": NATS_VERSION,
        },
    } == answer


def test_what_a_server_adds_to_the_metadata_is_told_but_not_kept() -> None:
    told = {"mine": "1", "_nats.ver": "9", "_nats.level": "9"}

    kept = checked_create(config(metadata=told)).metadata

    assert {"mine": "1", "_nats.req.level": "0"} == kept
