"""The configuration of a stream: JSON in and out, defaults, what makes sense, what may change."""

from dataclasses import fields
from typing import Any

import pytest

from penstock.errors import JetStreamError
from penstock.jetstream.config import rules
from penstock.jetstream.config.stream import STREAM_REQUEST_FIELDS, StreamConfig
from penstock.protocol import strictjson
from penstock.version import API_LEVEL, NATS_VERSION

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


def test_the_duplicate_window_is_not_longer_than_the_age() -> None:
    assert SECOND_NS == checked_create(config(max_age=SECOND_NS)).duplicate_window


def test_what_a_server_adds_to_the_metadata_is_told_but_not_kept() -> None:
    told = {"mine": "1", "_nats.ver": "9", "_nats.level": "9"}

    kept = checked_create(config(metadata=told)).metadata

    assert {"mine": "1", "_nats.req.level": "0"} == kept


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": ""}, "stream name is required and can not contain '.', '*', '>', '\\', '/'"),
        ({"name": "a b"}, "stream name is required and can not contain '.', '*', '>', '\\', '/'"),
        ({"name": "a" * 256}, "stream name is too long, maximum allowed is 255"),
        ({"description": "a" * 4097}, "stream description is too long, maximum allowed is 4096"),
        ({"metadata": {"a": "b" * 131072}}, "stream metadata exceeds maximum size of 131072 bytes"),
        ({"max_age": -1}, "max age can not be negative"),
        ({"max_age": 1}, "max age needs to be >= 100ms"),
        ({"duplicate_window": -1}, "duplicates window can not be negative"),
        ({"duplicate_window": 1}, "duplicates window needs to be >= 100ms"),
        (
            {"max_age": SECOND_NS, "duplicate_window": 2 * SECOND_NS},
            "duplicates window can not be larger then max age",
        ),
        (
            {"deny_purge": True, "allow_rollup_hdrs": True},
            "roll-ups require the purge permission",
        ),
        (
            {"discard_new_per_subject": True},
            "discard new per subject requires discard new policy to be set",
        ),
        (
            {"discard_new_per_subject": True, "discard": "new"},
            "discard new per subject requires max msgs per subject > 0",
        ),
        ({"subjects": ("a..b",)}, "invalid subject"),
        ({"subjects": ("",)}, "invalid subject"),
        ({"subjects": ("a.*", "a.b")}, 'subject "a.*" overlaps with "a.b"'),
        ({"subjects": (">",)}, "capturing all subjects requires no-ack to be true"),
        (
            {"subjects": ("$JS.API.>",)},
            "subjects that overlap with jetstream api require no-ack to be true",
        ),
        (
            {"subjects": ("$SYS.>",)},
            "subjects that overlap with system api require no-ack to be true",
        ),
        ({"num_replicas": 6}, "maximum replicas is 5"),
        ({"num_replicas": -1}, "replicas count cannot be negative"),
        ({"num_replicas": 3}, "replicas > 1 not supported in non-clustered mode"),
        ({"sealed": True}, "stream configuration for create can not be sealed"),
        ({"mirror_direct": True}, "stream has no mirror but does have mirror direct"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    options: dict[str, Any], expected: str
) -> None:
    assert expected == refusal(checked_create, config(**options))


@pytest.mark.parametrize("subject", ["$JS.EVENT.>", "$SYS.ACCOUNT.>"])
def test_events_of_the_server_may_be_stored(subject: str) -> None:
    assert (subject,) == checked_create(config(subjects=(subject,))).subjects


def test_everything_may_be_stored_without_acks() -> None:
    assert (">",) == checked_create(config(subjects=(">",), no_ack=True)).subjects


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_msgs": -2}, "pedantic mode: max_msgs must be set to -1"),
        ({"max_bytes": -2}, "pedantic mode: max_bytes must be set to -1"),
        (
            {"max_age": SECOND_NS},
            "pedantic mode: duplicate window cannot be bigger than max age",
        ),
    ],
)
def test_a_pedantic_request_is_not_put_right_silently(
    options: dict[str, Any], expected: str
) -> None:
    checked_create(config(**options))
    assert expected == refusal(checked_create, config(**options), pedantic=True)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"name": "T"}, "stream configuration name must match original"),
        ({}, {"storage": "memory"}, "stream configuration update can not change storage type"),
        (
            {},
            {"retention": "workqueue"},
            "stream configuration update can not change retention policy to/from workqueue",
        ),
        (
            {"retention": "workqueue"},
            {},
            "stream configuration update can not change retention policy to/from workqueue",
        ),
        (
            {"sealed": True},
            {},
            "stream configuration update can not unseal a sealed stream",
        ),
        (
            {"deny_delete": True},
            {},
            "stream configuration update can not cancel deny message deletes",
        ),
        ({"deny_purge": True}, {}, "stream configuration update can not cancel deny purge"),
        ({"allow_msg_ttl": True}, {}, "message TTL status can not be disabled"),
        ({}, {"num_replicas": 2}, "replicas > 1 not supported in non-clustered mode"),
    ],
)
def test_what_may_not_change_does_not(
    old: dict[str, Any], new: dict[str, Any], expected: str
) -> None:
    assert expected == refusal(checked_update, config(**old), config(**new))


def test_retention_may_change_between_limits_and_interest() -> None:
    changed = checked_update(config(), config(retention="interest"))
    assert "interest" == changed.retention


def test_sealing_closes_every_door() -> None:
    sealed = checked_update(config(), config(sealed=True, max_age=SECOND_NS))

    assert (0, "new", True, True, False) == (
        sealed.max_age,
        sealed.discard,
        sealed.deny_delete,
        sealed.deny_purge,
        sealed.allow_rollup_hdrs,
    )


def test_json_that_is_not_strict_passes_over_what_it_does_not_know() -> None:
    kinds = {"seq": "uint64"}
    assert {"seq": 1} == strictjson.decode(b'{"SEQ":1,"x":[]}', kinds, "T", strict=False)


@pytest.mark.parametrize("depth", [900, 100_000])
def test_json_that_is_nested_too_deep_is_refused(depth: int) -> None:
    with pytest.raises(strictjson.InvalidJson, match="exceeded max depth"):
        strictjson.decode(b"[" * depth, {}, "T")


@pytest.mark.parametrize(
    "text", [b'{"a":"1"}{"b":"2"}', b' {"a":"1"} \n\t{"b":"2"}\r\n ', b'{"a":"1"}null{"b":"2"}']
)
def test_values_one_after_another_are_all_read(text: bytes) -> None:
    assert {"a": "1", "b": "2"} == strictjson.decode(text, {"a": "string", "b": "string"}, "T")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"{}" * 17, "more than 16 values in a request"),
        (b" " * (256 * 1024 + 1), "a request may have at most 262144 bytes"),
        (b"[" + b"1," * 10_000 + b"x", "invalid JSON in a request too long to say where"),
        (b'{"a":"' + b"a" * 4097 + b'"}', "T.a is longer than 4096 characters"),
        (b'{"b":["x","' + b"a" * 4097 + b'"]}', "T.b is longer than 4096 characters"),
    ],
)
def test_a_request_that_is_too_large_is_refused(text: bytes, problem: str) -> None:
    with pytest.raises(strictjson.InvalidJson) as caught:
        strictjson.decode(text, {"a": "subject", "b": "[]subject"}, "T")

    assert problem == str(caught.value)


def test_lists_of_objects_and_durations_are_read() -> None:
    kinds = {"items": [{"name": "string"}], "waits": "[]time.Duration", "any": "interface {}"}
    document = b'{"items":[{"name":"a"},{}],"waits":[1,2],"any":[{}]}'

    expected = {"items": [{"name": "a"}, {}], "waits": (1, 2), "any": [{}]}
    assert expected == strictjson.decode(document, kinds, "T")


@pytest.mark.parametrize(
    ("document", "found", "kind"),
    [(b'{"items":{}}', "object", "[]object"), (b'{"items":[1]}', "number", "object")],
)
def test_lists_of_something_else_are_refused(document: bytes, found: str, kind: str) -> None:
    with pytest.raises(strictjson.InvalidJson) as caught:
        strictjson.decode(document, {"items": [{"name": "string"}]}, "T")
    expected = f"json: cannot unmarshal {found} into Go struct field T.items of type {kind}"
    assert expected == caught.value.text
