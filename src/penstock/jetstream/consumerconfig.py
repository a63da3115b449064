"""
What a consumer is configured to be: every option once, JSON in and out, with its rules.

As in `model`, options that are not supported yet have their place, and are refused
by name. The order of the fields is that of nats-server's answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from penstock import subjects
from penstock.errors import JetStreamError
from penstock.jetstream import errorcodes as codes
from penstock.jetstream.model import (
    API_LEVEL,
    REQUIRED_LEVEL,
    SERVER_LEVEL,
    SERVER_VERSION,
    StreamConfig,
    option,
)
from penstock.version import NATS_VERSION

SECOND_NS = 1_000_000_000
ACK_WAIT_NS = 30 * SECOND_NS
INACTIVE_THRESHOLD_NS = 5 * SECOND_NS
HEARTBEAT_NS_MIN = SECOND_NS // 10
REQUEST_EXPIRES_NS_MIN = 1_000_000
MAX_WAITING = 512
MAX_ACK_PENDING = 1000
NAME_LENGTH_MAX = 255
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
ACK_POLICIES = ("none", "all", "explicit")
REPLAY_POLICIES = ("instant", "original")
PRIORITY_POLICIES = ("none", "overflow", "pinned_client", "prioritized")


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
    rate_limit_bps: int = option(0, "uint64", omit_empty=True, supported=False)
    sample_freq: str = option("", "string", omit_empty=True, supported=False)
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
    direct: bool = option(False, "bool", omit_empty=True, supported=False)
    metadata: Mapping[str, str] = option(None, "map[string]string", omit_empty=True, factory=dict)
    pause_until: str = option("", "string", omit_empty=True, supported=False)
    priority_groups: tuple[str, ...] = option((), "[]string", omit_empty=True, supported=False)
    priority_policy: str = option("none", PRIORITY_POLICIES, omit_empty=True, supported=False)
    priority_timeout: int = option(0, "time.Duration", omit_empty=True, supported=False)

    @property
    def is_durable(self) -> bool:
        """Whether it outlives those who use it."""
        return bool(self.durable_name)

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

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ConsumerConfig:
        """Build a configuration from fields that `strictjson` has checked."""
        return cls(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as it is stored."""
        document = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.metadata["omit_empty"] and (not value or value == item.default == "none"):
                continue
            document[item.name] = list(value) if isinstance(value, tuple) else value
        return document

    def to_answer(self) -> dict[str, Any]:
        """Return the configuration as clients are told it, with who told them."""
        versions = {
            SERVER_LEVEL: str(API_LEVEL),
            SERVER_VERSION: NATS_VERSION,
            REQUIRED_LEVEL: "0",
        }
        document = self.to_json()
        document["metadata"] = dict(sorted((dict(self.metadata) | versions).items()))
        return document

    def unsupported_options(self) -> list[str]:
        """Return the names of the options in use that only have their place so far."""
        return [
            item.name
            for item in fields(self)
            if not item.metadata["supported"] and getattr(self, item.name) != item.default
        ]


CONSUMER_CONFIG_FIELDS = {item.name: item.metadata["kind"] for item in fields(ConsumerConfig)}


def with_defaults(config: ConsumerConfig, stream: StreamConfig) -> ConsumerConfig:
    """Fill in what the request left open."""
    told = (SERVER_LEVEL, SERVER_VERSION, REQUIRED_LEVEL)
    changes: dict[str, Any] = {
        "metadata": {key: value for key, value in config.metadata.items() if key not in told},
        "max_deliver": config.max_deliver or -1,
        "name": config.name or config.durable_name,
    }
    if config.backoff:
        changes["ack_wait"] = config.backoff[0]
    elif config.ack_policy != "none" and config.ack_wait <= 0:
        changes["ack_wait"] = ACK_WAIT_NS
    if config.ack_policy != "none" and config.max_ack_pending == 0:
        limit = stream.consumer_limits.get("max_ack_pending", 0)
        changes["max_ack_pending"] = limit or MAX_ACK_PENDING
    if not config.is_push and config.max_waiting == 0:
        changes["max_waiting"] = MAX_WAITING
    if config.inactive_threshold == 0:
        limit = stream.consumer_limits.get("inactive_threshold", 0)
        if limit or not config.is_durable:
            changes["inactive_threshold"] = limit or INACTIVE_THRESHOLD_NS
    return replace(config, **changes)


def check(config: ConsumerConfig, stream: StreamConfig) -> None:
    """Refuse what makes no sense, in nats-server's words and order."""
    unsupported = config.unsupported_options()
    if unsupported:
        text = f"consumer option not supported yet: {', '.join(unsupported)}"
        raise JetStreamError(codes.CONSUMER_CREATE, err=text)
    _check_name(config)
    _check_mode(config)
    _check_numbers(config, stream)
    _check_start(config)
    _check_filters(config)
    if stream.retention == "workqueue":
        _check_workqueue(config)


def _check_name(config: ConsumerConfig) -> None:
    if len(config.name) > NAME_LENGTH_MAX:
        raise JetStreamError(codes.CONSUMER_NAME_TOO_LONG, max=NAME_LENGTH_MAX)
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise JetStreamError(codes.CONSUMER_DESCRIPTION_TOO_LONG, max=DESCRIPTION_BYTES_MAX)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in config.metadata.items())
    if size > METADATA_BYTES_MAX:
        raise JetStreamError(codes.CONSUMER_METADATA_LENGTH, limit="128KiB")
    if set(config.durable_name + config.name) & set(".*> \t\r\n\f"):
        raise JetStreamError(codes.CONSUMER_BAD_DURABLE_NAME)
    if set(config.durable_name + config.name) & set("/\\"):
        raise JetStreamError(codes.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS)


def _check_mode(config: ConsumerConfig) -> None:
    if config.is_push:
        _check_push(config)
        return
    if config.max_waiting < 0:
        raise JetStreamError(codes.CONSUMER_MAX_WAITING_NEGATIVE)
    if config.idle_heartbeat > 0:
        raise JetStreamError(codes.CONSUMER_HEARTBEAT_REQUIRES_PUSH)
    if config.flow_control:
        raise JetStreamError(codes.CONSUMER_FLOW_CONTROL_REQUIRES_PUSH)
    if config.max_batch < 0:
        raise JetStreamError(codes.CONSUMER_MAX_REQUEST_BATCH_NEGATIVE)
    if config.max_expires and config.max_expires < REQUEST_EXPIRES_NS_MIN:
        raise JetStreamError(codes.CONSUMER_MAX_REQUEST_EXPIRES_TOO_SMALL)


def _check_push(config: ConsumerConfig) -> None:
    deliver = config.deliver_subject.encode()
    if not subjects.is_valid(deliver):
        raise JetStreamError(codes.CONSUMER_INVALID_DELIVER_SUBJECT)
    if not subjects.is_literal(deliver):
        raise JetStreamError(codes.CONSUMER_DELIVER_TO_WILDCARDS)
    if config.max_waiting:
        raise JetStreamError(codes.CONSUMER_PUSH_MAX_WAITING)
    if config.idle_heartbeat and config.idle_heartbeat < HEARTBEAT_NS_MIN:
        raise JetStreamError(codes.CONSUMER_SMALL_HEARTBEAT)
    if config.flow_control and not config.idle_heartbeat:
        raise JetStreamError(codes.CONSUMER_WITH_FLOW_CONTROL_NEEDS_HEARTBEATS)


def _check_numbers(config: ConsumerConfig, stream: StreamConfig) -> None:
    if config.ack_policy == "none" and config.max_ack_pending > 0:
        raise JetStreamError(codes.CONSUMER_MAX_PENDING_ACK_POLICY_REQUIRED)
    if config.ack_wait < 0:
        raise JetStreamError(codes.CONSUMER_ACK_WAIT_NEGATIVE)
    if any(wait < 0 for wait in config.backoff):
        raise JetStreamError(codes.CONSUMER_BACK_OFF_NEGATIVE)
    if config.backoff and 0 < config.max_deliver <= len(config.backoff):
        raise JetStreamError(codes.CONSUMER_MAX_DELIVER_BACKOFF)
    if config.num_replicas > stream.num_replicas:
        raise JetStreamError(codes.CONSUMER_REPLICAS_EXCEEDS_STREAM)
    limit = stream.consumer_limits.get("max_ack_pending", 0)
    if limit and not 0 < config.max_ack_pending <= limit and config.ack_policy != "none":
        raise JetStreamError(codes.CONSUMER_MAX_PENDING_ACK_EXCESS, limit=limit)
    limit = stream.consumer_limits.get("inactive_threshold", 0)
    if limit and config.inactive_threshold > limit:
        shown = f"{limit / SECOND_NS:g}s"
        raise JetStreamError(codes.CONSUMER_INACTIVE_THRESHOLD_EXCESS, limit=shown)


def _check_start(config: ConsumerConfig) -> None:
    """Refuse a start that its policy does not go with."""
    policy = config.deliver_policy
    wrong = ""
    if policy == "by_start_sequence":
        wrong = "time" if config.opt_start_time else "" if config.opt_start_seq else "no sequence"
    elif policy == "by_start_time":
        wrong = "sequence" if config.opt_start_seq else "" if config.opt_start_time else "no time"
    elif config.opt_start_seq:
        wrong = "sequence"
    elif config.opt_start_time:
        wrong = "time"
    if wrong:
        raise JetStreamError(codes.CONSUMER_INVALID_POLICY, err=_start_error(policy, wrong))
    if policy == "last_per_subject" and not config.filters:
        text = "consumer delivery policy is deliver last per subject, but FilterSubject is not set"
        raise JetStreamError(codes.CONSUMER_INVALID_POLICY, err=text)


def _start_error(policy: str, wrong: str) -> str:
    name = policy.replace("_", " ").removeprefix("by ")
    prefix = f"consumer delivery policy is deliver {name}"
    if wrong == "no sequence":
        return f"{prefix}, but optional start sequence is not set"
    if wrong == "no time":
        return f"{prefix}, but optional start time is not set"
    return f"{prefix}, but optional start {wrong} is also set"


def _check_filters(config: ConsumerConfig) -> None:
    if config.filter_subject and config.filter_subjects:
        raise JetStreamError(codes.CONSUMER_DUPLICATE_FILTER_SUBJECTS)
    filters = config.filters
    for index, pattern in enumerate(filters):
        if not pattern:
            raise JetStreamError(codes.CONSUMER_EMPTY_FILTER)
        if not subjects.is_valid(pattern):
            raise JetStreamError(codes.CONSUMER_FILTER_NOT_SUBSET)
        if any(subjects.overlap(pattern, other) for other in filters[index + 1 :]):
            raise JetStreamError(codes.CONSUMER_OVERLAPPING_SUBJECT_FILTERS)


def _check_workqueue(config: ConsumerConfig) -> None:
    if config.ack_policy == "none" and not config.is_push:
        raise JetStreamError(codes.CONSUMER_PULL_REQUIRES_ACK)
    if config.ack_policy != "explicit":
        raise JetStreamError(codes.CONSUMER_WORKQUEUE_REQUIRES_EXPLICIT_ACK)
    if config.deliver_policy != "all":
        raise JetStreamError(codes.CONSUMER_WORKQUEUE_NOT_DELIVER_ALL)


NOT_UPDATABLE = {
    "deliver_policy": "deliver policy",
    "opt_start_seq": "start sequence",
    "opt_start_time": "start time",
    "ack_policy": "ack policy",
    "replay_policy": "replay policy",
    "idle_heartbeat": "heart beats",
    "flow_control": "flow control",
    "max_waiting": "max waiting",
}


def check_update(old: ConsumerConfig, new: ConsumerConfig) -> None:
    """Refuse a change that a running consumer cannot take."""
    for name, words in NOT_UPDATABLE.items():
        if getattr(old, name) != getattr(new, name):
            raise JetStreamError(codes.CONSUMER_CREATE, err=f"{words} can not be updated")
    if old.is_push != new.is_push:
        text = (
            "can not update push consumer to pull based"
            if old.is_push
            else ("can not update pull consumer to push based")
        )
        raise JetStreamError(codes.CONSUMER_CREATE, err=text)
