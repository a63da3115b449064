"""
Settings of streams and consumers as keywords, so that checkers and editors know them.

The names are those of the NATS documentation. A duration is a `timedelta`, or a number of
nanoseconds as in the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict

DeliverPolicy: TypeAlias = Literal[
    "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"
]
Storage: TypeAlias = Literal["file", "memory"]


class StreamSettings(TypedDict, total=False):
    """The configuration of a stream."""

    description: str
    subjects: Sequence[str]
    retention: Literal["limits", "interest", "workqueue"]
    max_consumers: int
    max_msgs: int
    max_bytes: int
    max_age: timedelta | int
    max_msgs_per_subject: int
    max_msg_size: int
    discard: Literal["old", "new"]
    storage: Storage
    num_replicas: int
    no_ack: bool
    duplicate_window: timedelta | int
    placement: Mapping[str, Any] | None
    mirror: Mapping[str, Any] | None
    sources: Sequence[Mapping[str, Any]]
    compression: Literal["none", "s2"]
    first_seq: int
    subject_transform: Mapping[str, Any] | None
    republish: Mapping[str, Any] | None
    allow_direct: bool
    mirror_direct: bool
    discard_new_per_subject: bool
    sealed: bool
    deny_delete: bool
    deny_purge: bool
    allow_rollup_hdrs: bool
    consumer_limits: Mapping[str, Any]
    allow_msg_ttl: bool
    subject_delete_marker_ttl: timedelta | int
    allow_msg_counter: bool
    allow_atomic: bool
    allow_msg_schedules: bool
    persist_mode: Literal["", "default", "async"]
    allow_batched: bool
    metadata: Mapping[str, str]


class ConsumerSettings(TypedDict, total=False):
    """The configuration of a consumer."""

    durable_name: str
    name: str
    description: str
    deliver_policy: DeliverPolicy
    opt_start_seq: int
    opt_start_time: datetime | str
    ack_policy: Literal["none", "all", "explicit", "flow_control"]
    ack_wait: timedelta | int
    max_deliver: int
    backoff: Sequence[timedelta | int]
    filter_subject: str
    filter_subjects: Sequence[str]
    replay_policy: Literal["instant", "original"]
    rate_limit_bps: int
    sample_freq: str
    max_waiting: int
    max_ack_pending: int
    flow_control: bool
    headers_only: bool
    max_batch: int
    max_expires: timedelta | int
    max_bytes: int
    deliver_subject: str
    deliver_group: str
    idle_heartbeat: timedelta | int
    inactive_threshold: timedelta | int
    num_replicas: int
    mem_storage: bool
    direct: bool
    sourcing: bool
    metadata: Mapping[str, str]
    pause_until: datetime | str
    priority_groups: Sequence[str]
    priority_policy: Literal["none", "overflow", "pinned_client", "prioritized"]
    priority_timeout: timedelta | int
