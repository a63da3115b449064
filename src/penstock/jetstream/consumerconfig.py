"""
What a consumer is configured to be: every option once, JSON in and out, with its rules.

The order of the fields is that of nats-server's answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from penstock import subjects
from penstock.errors import JetStreamError
from penstock.jetstream import errorcodes as codes
from penstock.jetstream import strictjson
from penstock.jetstream.model import (
    API_LEVEL,
    REQUIRED_LEVEL,
    SERVER_LEVEL,
    SERVER_VERSION,
    StreamConfig,
    option,
)
from penstock.jetstream.store import Filters
from penstock.jetstream.times import parse_time
from penstock.times import duration
from penstock.version import NATS_VERSION

SECOND_NS = 1_000_000_000
ACK_WAIT_NS = 30 * SECOND_NS
INACTIVE_THRESHOLD_NS = 5 * SECOND_NS
HEARTBEAT_NS_MIN = SECOND_NS // 10
FLOW_CONTROL_HEARTBEAT_NS = SECOND_NS
NEVER_NS = 100 * 365 * 24 * 3600 * SECOND_NS
"""How long an ack is waited for that comes with flow control: such messages are not redelivered."""
REQUEST_EXPIRES_NS_MIN = 1_000_000
MAX_WAITING = 512
MAX_ACK_PENDING = 1000
NAME_LENGTH_MAX = 255
NAME_FORBIDDEN = frozenset(" \t\r\n\f.*>\\/")
DESCRIPTION_BYTES_MAX = 4 * 1024
METADATA_BYTES_MAX = 128 * 1024

DELIVER_POLICIES = (
    "all",
    "last",
    "new",
    "by_start_sequence",
    "by_start_time",
    "last_per_subject",
)
ACK_POLICIES = ("none", "all", "explicit", "flow_control")
REPLAY_POLICIES = ("instant", "original")
PRIORITY_POLICIES = ("none", "overflow", "pinned_client", "prioritized")
PRIORITY_TIMEOUT_NS = 120 * SECOND_NS
GROUP_NAME = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
INT_MAX = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """The options of a consumer."""

    durable_name: str = option("", "string", omit_empty=True)
    name: str = option("", "string", omit_empty=True)
    description: str = option("", "string", omit_empty=True)
    deliver_policy: str = option("all", DELIVER_POLICIES)
    opt_start_seq: int = option(0, "uint64", omit_empty=True)
    opt_start_time: str = option("", "string", omit_empty=True)
    ack_policy: str = option("none", ACK_POLICIES)
    ack_wait: int = option(0, "time.Duration", omit_empty=True)
    max_deliver: int = option(0, "int", omit_empty=True)
    backoff: tuple[int, ...] = option((), "[]time.Duration", omit_empty=True)
    filter_subject: str = option("", "string", omit_empty=True)
    filter_subjects: tuple[str, ...] = option((), "[]string", omit_empty=True)
    replay_policy: str = option("instant", REPLAY_POLICIES)
    rate_limit_bps: int = option(0, "uint64", omit_empty=True)
    sample_freq: str = option("", "string", omit_empty=True)
    max_waiting: int = option(0, "int", omit_empty=True)
    max_ack_pending: int = option(0, "int", omit_empty=True)
    flow_control: bool = option(False, "bool", omit_empty=True)
    headers_only: bool = option(False, "bool", omit_empty=True)
    max_batch: int = option(0, "int", omit_empty=True)
    max_expires: int = option(0, "time.Duration", omit_empty=True)
    max_bytes: int = option(0, "int", omit_empty=True)
    deliver_subject: str = option("", "string", omit_empty=True)
    deliver_group: str = option("", "string", omit_empty=True)
    idle_heartbeat: int = option(0, "time.Duration", omit_empty=True)
    inactive_threshold: int = option(0, "time.Duration", omit_empty=True)
    num_replicas: int = option(0, "int")
    mem_storage: bool = option(False, "bool", omit_empty=True)
    direct: bool = option(False, "bool", omit_empty=True)
    sourcing: bool = option(False, "bool", omit_empty=True)
    metadata: Mapping[str, str] = option(None, "map[string]string", omit_empty=True, factory=dict)
    pause_until: str = option("", "string", omit_empty=True)
    priority_groups: tuple[str, ...] = option((), "[]string", omit_empty=True)
    priority_policy: str = option(
        "none",
        strictjson.OneOf(PRIORITY_POLICIES, "unknown priority policy: {}"),
        omit_empty=True,
    )
    priority_timeout: int = option(0, "time.Duration", omit_empty=True)

    @property
    def is_durable(self) -> bool:
        """Whether it outlives those who use it."""
        return bool(self.durable_name)

    @property
    def ack_waits_ns(self) -> tuple[int, ...]:
        """How long to wait for an ack: the first time, the second, ...; the last goes on."""
        if self.ack_policy == "flow_control":
            return (NEVER_NS,)
        return self.backoff or (self.ack_wait,)

    @property
    def is_private(self) -> bool:
        """Whether it serves another stream: no limit counts it, and no message is kept for it."""
        return self.direct or self.sourcing

    @property
    def is_push(self) -> bool:
        """Whether messages are sent without being asked for."""
        return bool(self.deliver_subject)

    @property
    def filters(self) -> tuple[bytes, ...]:
        """The subjects it wants; empty for all."""
        if self.filter_subject:
            return (self.filter_subject.encode(),)
        return tuple(each.encode() for each in self.filter_subjects)

    @property
    def sample_percent(self) -> int:
        """Of how many acks in a hundred a metric is published."""
        return int(self.sample_freq.removesuffix("%") or "0")

    @property
    def pause_until_ns(self) -> int:
        """Until when nothing is delivered; 0 if it never was paused."""
        return parse_time(self.pause_until) if self.pause_until else 0

    @property
    def required_level(self) -> int:
        """The API level that a server needs to serve such a consumer."""
        if self.ack_policy == "flow_control":
            return 4
        is_grouped = self.priority_policy != "none" or self.priority_groups
        return 1 if is_grouped or self.priority_timeout or self.pause_until_ns else 0

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ConsumerConfig:
        """Build a configuration from fields that `strictjson` has checked."""
        options: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**options)

    def but(self, **changes: Any) -> ConsumerConfig:
        """Return the same with some options changed; watching a key makes a few of these."""
        other = object.__new__(ConsumerConfig)
        # As `dataclasses.replace`, which takes ten times as long for so many fields.
        other.__dict__.update(self.__dict__, **changes)
        return other

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as it is stored."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.__dict__.items()
            if name not in EMPTY or (value and value != EMPTY[name])
        }

    def to_answer(self) -> dict[str, Any]:
        """Return the configuration as clients are told it, with who told them."""
        versions = {
            SERVER_LEVEL: str(API_LEVEL),
            SERVER_VERSION: NATS_VERSION,
            REQUIRED_LEVEL: str(self.required_level),
        }
        metadata = dict(sorted((dict(self.metadata) | versions).items()))
        return self.but(metadata=metadata).to_json()


CONSUMER_CONFIG_FIELDS = {item.name: item.metadata["kind"] for item in fields(ConsumerConfig)}
EMPTY = {
    item.name: "none" if item.default == "none" else None
    for item in fields(ConsumerConfig)
    if item.metadata["omit_empty"]
}
"""Options that are left out where they say nothing, and what says as little as an empty one."""
UNSUPPORTED = {
    item.name: item.default for item in fields(ConsumerConfig) if not item.metadata["supported"]
}

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
"""What a smaller number is taken for, and what a pedantic request is told of it."""


def with_defaults(
    config: ConsumerConfig, stream: StreamConfig, *, pedantic: bool = False
) -> ConsumerConfig:
    """Fill in what the request left open."""
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
    """Return the configuration of a consumer that is made under this name."""
    changes: dict[str, Any] = {"name": name}
    if not config.is_durable and not config.inactive_threshold:
        changes["inactive_threshold"] = INACTIVE_THRESHOLD_NS
    return config.but(**changes)


def check(config: ConsumerConfig, stream: StreamConfig) -> None:
    """Refuse what makes no sense, in nats-server's words and order."""
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
    size = sum(len(key.encode()) + len(value.encode()) for key, value in config.metadata.items())
    if size > METADATA_BYTES_MAX:
        limit = f"{METADATA_BYTES_MAX // 1024}KB"
        raise JetStreamError(codes.CONSUMER_METADATA_LENGTH, limit=limit)
    _check_priority(config)


def _check_names(config: ConsumerConfig) -> None:
    for words, name in (("name", config.name), ("durable name", config.durable_name)):
        if set(name) & NAME_FORBIDDEN:
            text = f"consumer {words} can not contain '.', '*', '>', '\\', '/'"
            raise JetStreamError(codes.STREAM_INVALID_CONFIG, err=text)


def _check_replicas(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.num_replicas > max(stream.num_replicas, 1):
        raise JetStreamError(codes.CONSUMER_REPLICAS_EXCEEDS_STREAM)
    if config.num_replicas < 0:
        raise JetStreamError(codes.REPLICAS_COUNT_CANNOT_BE_NEGATIVE)


def _check_waits(config: ConsumerConfig) -> None:
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
    """Tell whether a consumer is over what the stream allows its consumers."""
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
    filters = config.filters
    for pattern in filters:
        if not subjects.is_valid(pattern):
            raise JetStreamError(codes.STREAM_INVALID_CONFIG, err="invalid subject")
    for index, pattern in enumerate(filters):
        others = filters[:index] + filters[index + 1 :]
        if any(subjects.contains(other, pattern) for other in others):
            raise JetStreamError(codes.CONSUMER_OVERLAPPING_SUBJECT_FILTERS)


def _check_start(config: ConsumerConfig) -> None:
    """Refuse a start that its policy does not go with."""
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
    """Refuse a share of acks that is no number, in the words of Go's `strconv`."""
    number = frequency.removesuffix("%")
    if not frequency:
        return
    problem = ""
    if not re.fullmatch("[+-]?[0-9]+", number):
        problem = f'strconv.Atoi: parsing "{number}": invalid syntax'
    elif abs(int(number)) > INT_MAX:
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
    for group in config.priority_groups:
        if not group:
            raise JetStreamError(codes.CONSUMER_EMPTY_GROUP_NAME)
        check_group_name(group)


def check_group_name(group: str) -> None:
    """Refuse what no priority group may be called."""
    if not GROUP_NAME.fullmatch(group):
        raise JetStreamError(codes.CONSUMER_INVALID_GROUP_NAME)


def check_new(config: ConsumerConfig, stream: StreamConfig, others: Iterable[Filters]) -> None:
    """Refuse a new consumer that does not go with the stream or its other consumers' filters."""
    others = tuple(others)
    if 0 < stream.max_consumers <= len(others) and not config.is_private:
        raise JetStreamError(codes.MAXIMUM_CONSUMERS_LIMIT)
    if stream.retention == "workqueue" and not config.is_private:
        if config.ack_policy not in ("explicit", "flow_control"):
            raise JetStreamError(codes.CONSUMER_WORKQUEUE_REQUIRES_EXPLICIT_ACK)
        if config.deliver_policy != "all":
            raise JetStreamError(codes.CONSUMER_WORKQUEUE_NOT_DELIVER_ALL)
        if others and not config.filters:
            raise JetStreamError(codes.CONSUMER_WORKQUEUE_MULTIPLE_UNFILTERED)
        check_unique(config, others)
    if len(config.name) > NAME_LENGTH_MAX:
        raise JetStreamError(codes.CONSUMER_NAME_TOO_LONG, max=NAME_LENGTH_MAX)


def check_unique(config: ConsumerConfig, others: Iterable[Filters]) -> None:
    """Refuse a consumer of a work queue that would share messages with another."""
    for filters in others:
        # Without filters the other one gets everything.
        for theirs in filters or (b">",):
            if any(subjects.overlap(ours, theirs) for ours in config.filters):
                raise JetStreamError(codes.CONSUMER_WORKQUEUE_NOT_UNIQUE)


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
    """Refuse a change that a running consumer cannot take; `is_bound`: somebody listens."""
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
