"""Which configurations of a stream make sense, and which changes to one."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import JetStreamError
from penstock.jetstream.config import rules
from penstock.jetstream.config.stream import StreamConfig

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


def test_the_duplicate_window_is_not_longer_than_the_age() -> None:
    assert SECOND_NS == checked_create(config(max_age=SECOND_NS)).duplicate_window


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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"discard": "new"}, "counter stream cannot use discard new"),
        ({"allow_msg_ttl": True}, "counter stream cannot use message TTLs"),
        ({"allow_msg_schedules": True}, "counter stream cannot use message schedules"),
        ({"retention": "interest"}, "counter stream can only use limits retention"),
    ],
)
def test_a_counter_keeps_every_message_it_counts(options: dict[str, Any], expected: str) -> None:
    counting = config(allow_msg_counter=True, **options)

    assert expected == refusal(checked_create, counting)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"storage": "memory"}, "async persist mode is only supported on file storage"),
        (
            {"num_replicas": 3},
            "async persist mode is not supported on replicated streams",
        ),
        (
            {"allow_atomic": True},
            "async persist mode is not supported with atomic batch publish",
        ),
    ],
)
def test_what_is_kept_later_is_kept_in_one_file(options: dict[str, Any], expected: str) -> None:
    assert expected == refusal(checked_create, config(persist_mode="async", **options))


def test_markers_and_schedules_bring_the_options_they_need() -> None:
    marking = checked_create(config(subject_delete_marker_ttl=SECOND_NS))
    scheduling = checked_create(config(allow_msg_schedules=True))

    assert (True, True) == (marking.allow_msg_ttl, marking.allow_rollup_hdrs)
    assert (True, False) == (scheduling.allow_rollup_hdrs, scheduling.deny_purge)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"subject_delete_marker_ttl": SECOND_NS},
            "subject delete marker cannot be set if message TTLs are disabled",
        ),
        (
            {"subject_delete_marker_ttl": SECOND_NS, "allow_msg_ttl": True},
            "subject delete marker cannot be set if roll-ups are disabled",
        ),
        (
            {"allow_msg_schedules": True},
            "message scheduling cannot be set if roll-ups are disabled",
        ),
        ({"republish": {"dest": "r.>"}}, "pedantic mode: republish source can not be empty"),
    ],
)
def test_a_pedantic_request_names_what_it_needs(options: dict[str, Any], expected: str) -> None:
    assert expected == refusal(checked_create, config(**options), pedantic=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"subject_delete_marker_ttl": 1},
            "subject delete marker TTL must be at least 1 second",
        ),
        ({"subject_delete_marker_ttl": -1}, "subject delete marker TTL must not be negative"),
        (
            {"allow_msg_schedules": True, "discard": "new"},
            "message scheduling cannot use discard new",
        ),
        ({"placement": {"preferred": "x"}}, "preferred server not permitted in placement"),
        (
            {"republish": {"src": ">", "dest": "s.again"}},
            "stream configuration for republish destination forms a cycle",
        ),
        (
            {"republish": {"src": "s.*", "dest": "r.*.*"}},
            "stream configuration for republish with transform from 's.*' to 'r.*.*' not valid",
        ),
        (
            {"subjects": tuple(f"s.{n}" for n in range(rules.SUBJECTS_MAX + 1))},
            "too many subjects, maximum allowed is 2048",
        ),
        (
            {"subjects": ("a" + ".a" * rules.TOKENS_MAX,)},
            "too many tokens in subjects, maximum allowed is 12288",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_more_that_makes_no_sense_is_refused(options: dict[str, Any], expected: str) -> None:
    assert expected == refusal(checked_create, config(**options))


def test_what_is_published_again_comes_from_everywhere_if_nothing_is_said() -> None:
    made = checked_create(config(republish={"dest": "r.>"}))

    assert {"src": ">", "dest": "r.>"} == made.republish


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"name": "T"}, "stream configuration name must match original"),
        (
            {},
            {"storage": "memory"},
            "stream configuration update can not change storage type",
        ),
        (
            {},
            {"allow_msg_counter": True},
            "stream configuration update can not change message counter setting",
        ),
        ({"allow_msg_schedules": True}, {}, "message schedules can not be disabled"),
        (
            {},
            {"persist_mode": "async"},
            "stream configuration update can not change persist mode",
        ),
        (
            {},
            {"mirror": {"name": "O"}, "subjects": ()},
            "stream mirror configuration can not be updated",
        ),
    ],
)
def test_more_that_may_not_change_does_not(
    old: dict[str, Any], new: dict[str, Any], expected: str
) -> None:
    assert expected == refusal(checked_update, config(**old), config(**new))
