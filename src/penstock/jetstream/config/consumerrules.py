"""
Which consumer configurations make sense, and which changes to one.

As with `rules` for streams, the checks, their order and their sentences are nats-server's: clients
match them. `with_defaults` fills in options that were left out, `check` looks at one consumer,
`check_new` and `check_update` compare it with existing ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from penstock.errors import JetStreamError
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.config.patterns import (
    STEPS_MAX,
    PatternIndex,
    Steps,
    TooManySteps,
    contained,
)
from penstock.jetstream.config.rules import (
    DESCRIPTION_BYTES_MAX,
    METADATA_BYTES_MAX,
    TOO_BROAD,
    check_count,
    check_patterns,
    invalid,
)
from penstock.jetstream.config.stream import (
    REQUIRED_LEVEL,
    SERVER_LEVEL,
    SERVER_VERSION,
    StreamConfig,
    metadata_bytes,
    name_bytes,
)
from penstock.jetstream.store.file.disk import NAME_BYTES_MAX, is_file_name
from penstock.protocol import errorcodes as codes
from penstock.protocol import subjects
from penstock.protocol.rfc3339 import parse_time
from penstock.protocol.times import SECOND_NS, duration

Others: TypeAlias = Mapping[str, tuple[bytes, ...]]
"""The filters of other consumers, by name."""

ACK_WAIT_NS = 30 * SECOND_NS
INACTIVE_THRESHOLD_NS = 5 * SECOND_NS
HEARTBEAT_NS_MIN = SECOND_NS // 10
FLOW_CONTROL_HEARTBEAT_NS = SECOND_NS
PRIORITY_TIMEOUT_NS = 120 * SECOND_NS
REQUEST_EXPIRES_NS_MIN = 1_000_000
MAX_WAITING = 512
MAX_ACK_PENDING = 1000
NAME_FORBIDDEN = frozenset(" \t\r\n\f.*>\\/")
GROUP_NAME = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
BACKOFF_MAX = 1024
GROUPS_MAX = 256
INT_MAX = 2**63 - 1
INT_DIGITS_MAX = 20
"""With the sign."""

SMALLEST = {
    "max_deliver": (-1, "max_deliver must be set to -1"),
    "max_waiting": (0, "max_waiting must not be negative"),
    "max_ack_pending": (-1, "max_ack_pending must be set to -1"),
    "max_batch": (0, "max_batch must not be negative"),
    "max_expires": (0, "max_expires must not be negative"),
    "max_bytes": (0, "max_bytes must not be negative"),
    "idle_heartbeat": (0, "idle_heartbeat must not be negative"),
    "inactive_threshold": (0, "inactive_threshold must not be negative"),
    "priority_timeout": (0, "priority_timeout must not be negative"),
}
"""The minimum that replaces a smaller number, and the error for a pedantic request."""


def with_defaults(
    config: ConsumerConfig, stream: StreamConfig, *, pedantic: bool = False
) -> ConsumerConfig:
    """Fill in options that the request left out."""
    told = (SERVER_LEVEL, SERVER_VERSION, REQUIRED_LEVEL)
    changes: dict[str, Any] = {
        "metadata": {key: value for key, value in config.metadata.items() if key not in told},
        "name": config.name or config.durable_name,
    }
    for name, (smallest, text) in SMALLEST.items():
        if getattr(config, name) < smallest:
            _insist(not pedantic, text)
            changes[name] = smallest
    if not config.max_deliver:
        changes["max_deliver"] = -1
    config = config.but(**changes)
    return config.but(**_defaults(config, stream, pedantic))


def _defaults(config: ConsumerConfig, stream: StreamConfig, pedantic: bool) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if not config.is_push and not config.max_waiting:
        changes["max_waiting"] = MAX_WAITING
    if config.ack_wait == 0 and config.ack_policy in ("all", "explicit"):
        changes["ack_wait"] = ACK_WAIT_NS
    if config.backoff:
        is_same = config.backoff[0] == changes.get("ack_wait", config.ack_wait)
        _insist(is_same or not pedantic, "first backoff value has to equal batch AckWait")
        changes["ack_wait"] = config.backoff[0]
    for name in ("max_ack_pending", "inactive_threshold"):
        limit = stream.consumer_limits.get(name, 0)
        if not getattr(config, name) and limit:
            _insist(not pedantic, f"{name} must be set if it's configured in stream limits")
            changes[name] = limit
    has_room = config.max_ack_pending or changes.get("max_ack_pending")
    if not has_room and config.ack_policy != "none":
        changes["max_ack_pending"] = MAX_ACK_PENDING
    if config.priority_policy == "pinned_client" and not config.priority_timeout:
        changes["priority_timeout"] = PRIORITY_TIMEOUT_NS
    if config.ack_policy == "flow_control" and not pedantic:
        changes |= {"flow_control": True, "idle_heartbeat": FLOW_CONTROL_HEARTBEAT_NS}
    return changes


def _insist(condition: bool, text: str) -> None:
    if not condition:
        raise JetStreamError(codes.PEDANTIC, err=text)


def with_name(config: ConsumerConfig, name: str) -> ConsumerConfig:
    """Return the configuration of a consumer made under this name."""
    changes: dict[str, Any] = {"name": name}
    if not config.is_durable and not config.inactive_threshold:
        changes["inactive_threshold"] = INACTIVE_THRESHOLD_NS
    return config.but(**changes)


def check(config: ConsumerConfig, stream: StreamConfig) -> None:
    """Refuse an invalid configuration, in nats-server's words and order."""
    _check_names(config)
    _check_replicas(config, stream)
    _check_waits(config)
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise JetStreamError(codes.CONSUMER_DESCRIPTION_TOO_LONG, max=DESCRIPTION_BYTES_MAX)
    if config.is_push:
        _check_push(config, stream)
    else:
        _check_pull(config, stream)
    _check_limits(config, stream)
    _check_direct(config)
    _check_filters(config)
    _check_start(config)
    _check_sampling(config.sample_freq)
    if config.flow_control and not config.idle_heartbeat:
        raise JetStreamError(codes.CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS)
    if config.durable_name and config.name != config.durable_name:
        raise JetStreamError(codes.CONSUMER_CREATE_DURABLE_AND_NAME_MISMATCH)
    if metadata_bytes(config.metadata) > METADATA_BYTES_MAX:
        limit = f"{METADATA_BYTES_MAX // 1024}KB"
        raise JetStreamError(codes.CONSUMER_METADATA_LENGTH, limit=limit)
    _check_priority(config)


def _check_names(config: ConsumerConfig) -> None:
    for words, name in (("name", config.name), ("durable name", config.durable_name)):
        if set(name) & NAME_FORBIDDEN:
            text = f"consumer {words} can not contain '.', '*', '>', '\\', '/'"
            raise JetStreamError(codes.STREAM_INVALID_CONFIG, err=text)
        if name and name_bytes(name) <= NAME_BYTES_MAX and not is_file_name(name):
            text = f"consumer {words} can not contain control characters"
            raise JetStreamError(codes.STREAM_INVALID_CONFIG, err=text)


def _check_replicas(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.num_replicas > max(stream.num_replicas, 1):
        raise JetStreamError(codes.CONSUMER_REPLICAS_EXCEEDS_STREAM)
    if config.num_replicas < 0:
        raise JetStreamError(codes.REPLICAS_COUNT_CANNOT_BE_NEGATIVE)


def _check_waits(config: ConsumerConfig) -> None:
    check_count("backoff times", config.backoff, BACKOFF_MAX)
    if any(wait < 0 for wait in config.backoff):
        raise JetStreamError(codes.CONSUMER_BACK_OFF_NEGATIVE)
    if config.ack_wait < 0:
        raise JetStreamError(codes.CONSUMER_ACK_WAIT_NEGATIVE)
    if config.ack_policy == "flow_control":
        _check_flow_control_acks(config)
    if config.max_deliver != -1 and len(config.backoff) > config.max_deliver:
        raise JetStreamError(codes.CONSUMER_MAX_DELIVER_BACKOFF)


def _check_flow_control_acks(config: ConsumerConfig) -> None:
    if not config.is_push:
        raise JetStreamError(codes.CONSUMER_ACK_FLOW_CONTROL_REQUIRES_PUSH)
    if not config.flow_control:
        raise JetStreamError(codes.CONSUMER_ACK_FLOW_CONTROL_REQUIRES_FLOW_CONTROL)
    if config.idle_heartbeat != FLOW_CONTROL_HEARTBEAT_NS:
        text = "flow control ack policy heartbeat needs to be 1s"
        raise JetStreamError(codes.STREAM_INVALID_CONFIG, err=text)
    if config.max_ack_pending <= 0:
        raise JetStreamError(codes.CONSUMER_ACK_FLOW_CONTROL_REQUIRES_MAX_ACK_PENDING)
    if config.ack_wait or config.backoff:
        raise JetStreamError(codes.CONSUMER_ACK_FLOW_CONTROL_REQUIRES_NO_ACK_WAIT)
    if config.max_deliver > 0:
        raise JetStreamError(codes.CONSUMER_ACK_FLOW_CONTROL_REQUIRES_NO_MAX_DELIVER)


def _check_direct(config: ConsumerConfig) -> None:
    if config.direct and not config.is_push:
        raise JetStreamError(codes.CONSUMER_DIRECT_REQUIRES_PUSH)
    if config.direct and config.is_durable:
        raise JetStreamError(codes.CONSUMER_DIRECT_REQUIRES_EPHEMERAL)


def _check_push(config: ConsumerConfig, stream: StreamConfig) -> None:
    deliver = config.deliver_subject.encode()
    if not subjects.is_literal(deliver):
        raise JetStreamError(codes.CONSUMER_DELIVER_TO_WILDCARDS)
    if not subjects.is_valid(deliver):
        raise JetStreamError(codes.CONSUMER_INVALID_DELIVER_SUBJECT)
    if any(subjects.matches(subject.encode(), deliver) for subject in stream.subjects):
        raise JetStreamError(codes.CONSUMER_DELIVER_CYCLE)
    if config.max_waiting:
        raise JetStreamError(codes.CONSUMER_PUSH_MAX_WAITING)
    if config.max_ack_pending > 0 and config.ack_policy == "none":
        raise JetStreamError(codes.CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED)
    if 0 < config.idle_heartbeat < HEARTBEAT_NS_MIN:
        raise JetStreamError(codes.CONSUMER_SMALL_HEARTBEAT)


def _check_pull(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.ack_policy == "none" and stream.retention == "workqueue":
        raise JetStreamError(codes.CONSUMER_PULL_REQUIRES_ACK)
    if config.rate_limit_bps:
        raise JetStreamError(codes.CONSUMER_PULL_WITH_RATE_LIMIT)
    if config.idle_heartbeat > 0:
        raise JetStreamError(codes.CONSUMER_HEARTBEAT_REQUIRES_PUSH)
    if config.flow_control:
        raise JetStreamError(codes.CONSUMER_FLOW_CONTROL_REQUIRES_PUSH)
    if 0 < config.max_expires < REQUEST_EXPIRES_NS_MIN:
        raise JetStreamError(codes.CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL)


def is_over(config: ConsumerConfig, stream: StreamConfig) -> bool:
    """Tell whether a consumer exceeds the stream's limits for consumers."""
    limits = stream.consumer_limits.items()
    return any(0 < limit < getattr(config, name) for name, limit in limits)


def _check_limits(config: ConsumerConfig, stream: StreamConfig) -> None:
    limit = stream.consumer_limits.get("max_ack_pending", 0)
    if 0 < limit < config.max_ack_pending:
        raise JetStreamError(codes.CONSUMER_MAX_PENDING_ACK_EXCESS, limit=limit)
    limit = stream.consumer_limits.get("inactive_threshold", 0)
    if 0 < limit < config.inactive_threshold:
        shown = duration(limit)
        raise JetStreamError(codes.CONSUMER_INACTIVE_THRESHOLD_EXCESS, limit=shown)


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise JetStreamError(codes.CONSUMER_DUPLICATE_FILTER_SUBJECTS)
    if not all(config.filter_subjects):
        raise JetStreamError(codes.CONSUMER_EMPTY_FILTER)
    check_patterns("filter subjects", config.filter_subjects)
    filters = config.filters
    for pattern in filters:
        if not subjects.is_valid(pattern):
            raise invalid("invalid subject")
    try:
        if contained(filters):
            raise JetStreamError(codes.CONSUMER_OVERLAPPING_SUBJECT_FILTERS)
    except TooManySteps:
        raise invalid(TOO_BROAD) from None


def _check_start(config: ConsumerConfig) -> None:
    """Refuse a start that does not fit the deliver policy."""
    policy = config.deliver_policy
    words = policy.replace("_", " ")
    problem = ""
    if policy == "by_start_sequence" and not config.opt_start_seq:
        problem = "start sequence is not set"
    elif policy == "by_start_time" and not config.opt_start_time:
        problem = "start time is not set"
    elif policy == "by_start_time" and config.opt_start_seq:
        problem = "start start sequence is also set"
    elif policy != "by_start_sequence" and config.opt_start_seq:
        problem = "start sequence is also set"
    elif policy != "by_start_time" and config.opt_start_time:
        problem = "start time is also set"
    elif policy == "last_per_subject" and not config.filters:
        problem = "filter subject is not set"
    if problem:
        text = f"consumer delivery policy is deliver {words}, but optional {problem}"
        raise JetStreamError(codes.CONSUMER_INVALID_POLICY, err=text)


def _check_sampling(frequency: str) -> None:
    """Refuse a sample frequency that is not a number, in the words of Go's `strconv`."""
    number = frequency.removesuffix("%")
    if not frequency:
        return
    problem = ""
    if not re.fullmatch("[+-]?[0-9]+", number):
        problem = f'strconv.Atoi: parsing "{number}": invalid syntax'
    elif len(number) > INT_DIGITS_MAX or abs(int(number)) > INT_MAX:
        problem = f'strconv.Atoi: parsing "{number}": value out of range'
    elif int(number) < 0:
        problem = "<nil>"
    if problem:
        raise JetStreamError(codes.CONSUMER_INVALID_SAMPLING, err=problem)


def _check_priority(config: ConsumerConfig) -> None:
    if config.priority_policy == "none":
        if config.priority_groups:
            raise JetStreamError(codes.CONSUMER_PRIORITY_GROUP_WITH_POLICY_NONE)
        if config.priority_timeout:
            raise JetStreamError(codes.CONSUMER_PRIORITY_TIMEOUT_WITH_POLICY_NONE)
        return
    if config.is_push:
        raise JetStreamError(codes.CONSUMER_PUSH_WITH_PRIORITY_GROUP)
    if not config.priority_groups:
        raise JetStreamError(codes.CONSUMER_PRIORITY_POLICY_WITHOUT_GROUP)
    check_count("priority groups", config.priority_groups, GROUPS_MAX)
    for group in config.priority_groups:
        if not group:
            raise JetStreamError(codes.CONSUMER_EMPTY_GROUP_NAME)
        check_group_name(group)


def check_group_name(group: str) -> None:
    """Refuse an invalid name for a priority group."""
    if not GROUP_NAME.fullmatch(group):
        raise JetStreamError(codes.CONSUMER_INVALID_GROUP_NAME)


def check_new(
    config: ConsumerConfig, stream: StreamConfig, others: Others, index: PatternIndex
) -> None:
    """Refuse a new consumer that does not fit the stream or the filters of its other consumers."""
    if 0 < stream.max_consumers <= len(others) and not config.is_private:
        raise JetStreamError(codes.MAXIMUM_CONSUMERS_LIMIT)
    if stream.retention == "workqueue" and not config.is_private:
        if config.ack_policy not in ("explicit", "flow_control"):
            raise JetStreamError(codes.CONSUMER_WORKQUEUE_REQUIRES_EXPLICIT_ACK)
        if config.deliver_policy != "all":
            raise JetStreamError(codes.CONSUMER_WORKQUEUE_NOT_DELIVER_ALL)
        if others and not config.filters:
            raise JetStreamError(codes.CONSUMER_WORKQUEUE_MULTIPLE_UNFILTERED)
        check_unique(config, others, index)
    check_name_length(config.name)


def check_name_length(name: str) -> None:
    """Refuse a name that is too long for the consumer's directory."""
    if name_bytes(name) > NAME_BYTES_MAX:
        raise JetStreamError(codes.CONSUMER_NAME_TOO_LONG, max=NAME_BYTES_MAX)


def check_unique(config: ConsumerConfig, others: Others, index: PatternIndex) -> None:
    """Refuse a consumer of a work queue that would share messages with another."""
    # Without filters the other one gets everything.
    index.refresh({name: filters or (b">",) for name, filters in others.items()})
    steps = Steps(STEPS_MAX)
    try:
        if any(True for ours in config.filters for _ in index.overlapping(ours, steps)):
            raise JetStreamError(codes.CONSUMER_WORKQUEUE_NOT_UNIQUE)
    except TooManySteps:
        raise invalid(TOO_BROAD) from None


NOT_UPDATABLE = {
    "deliver_policy": "deliver policy",
    "mem_storage": "storage type",
    "direct": "direct",
    "sourcing": "sourcing",
    "opt_start_seq": "start sequence",
    "opt_start_time": "start time",
    "ack_policy": "ack policy",
    "replay_policy": "replay policy",
    "idle_heartbeat": "heart beats",
    "flow_control": "flow control",
}


def check_update(old: ConsumerConfig, new: ConsumerConfig, *, is_bound: bool) -> None:
    """Refuse a change that a running consumer cannot take; `is_bound` if somebody listens."""
    if old.opt_start_time and new.opt_start_time:
        is_same = parse_time(old.opt_start_time) == parse_time(new.opt_start_time)
        old = old.but(opt_start_time=new.opt_start_time) if is_same else old
    for name, words in NOT_UPDATABLE.items():
        if getattr(old, name) != getattr(new, name):
            raise JetStreamError(codes.CONSUMER_CREATE, err=f"{words} can not be updated")
    if old.deliver_subject != new.deliver_subject:
        if not old.is_push or not new.is_push:
            modes = "push consumer to pull" if old.is_push else "pull consumer to push"
            raise JetStreamError(codes.CONSUMER_CREATE, err=f"can not update {modes} based")
        if is_bound:
            raise JetStreamError(codes.CONSUMER_NAME_EXIST)
    if old.max_waiting != new.max_waiting:
        raise JetStreamError(codes.CONSUMER_CREATE, err="max waiting can not be updated")
