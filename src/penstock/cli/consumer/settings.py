"""Every setting of a consumer, under the headings of its help."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.cli import values
from penstock.cli.settings import (
    DURATION,
    DURATIONS,
    LIMIT,
    METADATA,
    NUMBER,
    SIZE,
    SUBJECTS,
    SWITCH,
    TEXT,
    TEXTS,
    TIME,
    Kind,
    Setting,
    one_of,
)

DELIVER_POLICIES = ("all", "last", "new", "last_per_subject")
START = Kind(
    "all|last|new|last_per_subject|SEQUENCE|TIME|DURATION",
    lambda text: read_start(text, datetime.now(UTC)),
)
"""The start position: one option on the command line, three fields in the API."""


def read_start(text: str, now: datetime) -> dict[str, Any]:
    """Return the API fields of a start: a policy, a sequence, a time, or a time ago."""
    policy = text.lower().replace("-", "_")
    if policy in DELIVER_POLICIES:
        return {"deliver_policy": policy}
    if text.isdigit():
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    try:
        time = values.rfc3339(values.read_moment(text, now))
    except ValueError:
        hint = f"{', '.join(DELIVER_POLICIES)}, a sequence, a time, or 1h for an hour ago"
        raise ValueError(f"`{text}` is not a start position; hint: {hint}") from None
    return {"deliver_policy": "by_start_time", "opt_start_time": time}


def _setting(section: str, field: str, kind: Kind, doc: str, **names: str) -> Setting:
    return Setting(field=field, kind=kind, doc=doc, section=section, **names)


CONSUMER_SETTINGS = (
    _setting("What", "filter_subjects", SUBJECTS, "Deliver only these subjects.", flag="--filter"),
    _setting("What", "deliver_policy", START, "Start position (default: all).", flag="--deliver"),
    _setting("What", "headers_only", SWITCH, "Deliver headers without payloads."),
    _setting(
        "What",
        "replay_policy",
        one_of("instant", "original"),
        "As fast as possible, or at the original pace.",
        flag="--replay",
    ),
    _setting("What", "description", TEXT, "Description."),
    _setting("What", "metadata", METADATA, "Metadata of your own; repeatable."),
    _setting(
        "Acks",
        "ack_policy",
        one_of("explicit", "all", "none", "flow_control"),
        "Ack each message, all up to one, or none (default: explicit).",
        flag="--ack",
    ),
    _setting("Acks", "ack_wait", DURATION, "Time before redelivery (default: 30s)."),
    _setting("Acks", "backoff", DURATIONS, "Redelivery time of each attempt."),
    _setting("Acks", "max_deliver", LIMIT, "Maximum deliveries; -1 is no limit."),
    _setting("Acks", "max_ack_pending", LIMIT, "Maximum unacked messages (default: 1000)."),
    _setting("Acks", "sample_freq", TEXT, "Share of acks reported as metrics, such as 10%."),
    _setting("Pull", "max_waiting", NUMBER, "Maximum waiting pull requests (default: 512)."),
    _setting("Pull", "max_batch", NUMBER, "Maximum batch of one pull.", flag="--max-pull-batch"),
    _setting(
        "Pull", "max_expires", DURATION, "Maximum expiry of one pull.", flag="--max-pull-expires"
    ),
    _setting("Pull", "max_bytes", SIZE, "Maximum bytes of one pull.", flag="--max-pull-bytes"),
    _setting("Pull", "priority_groups", TEXTS, "Names of the priority groups."),
    _setting(
        "Pull",
        "priority_policy",
        one_of("none", "overflow", "pinned_client", "prioritized"),
        "Policy of the priority groups.",
    ),
    _setting("Pull", "priority_timeout", DURATION, "Time until an idle client loses its pin."),
    _setting(
        "Push",
        "deliver_subject",
        TEXT,
        "Push to this subject (default: a pull consumer).",
        flag="--push",
    ),
    _setting(
        "Push", "deliver_group", TEXT, "Queue group that shares the messages.", flag="--queue"
    ),
    _setting("Push", "flow_control", SWITCH, "Use flow control; needs a heartbeat."),
    _setting("Push", "idle_heartbeat", DURATION, "Heartbeat while idle.", flag="--heartbeat"),
    _setting("Push", "rate_limit_bps", NUMBER, "Maximum bits per second.", flag="--rate-limit"),
    _setting("Life", "inactive_threshold", DURATION, "Delete it when unused for this time."),
    _setting("Life", "mem_storage", SWITCH, "Keep the state in memory.", flag="--memory"),
    _setting("Life", "num_replicas", NUMBER, "Copies in a cluster.", flag="--replicas"),
    _setting("Life", "pause_until", TIME, "Pause until this time."),
    _setting("Life", "direct", SWITCH, "Created by a server for a mirror or source."),
    _setting("Life", "sourcing", SWITCH, "Created by a server for a source."),
)
"""All settings; the fields are those of the API's ConsumerConfig, except in `as_fields`."""


def as_fields(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration for the API: a start has three fields, and a filter two forms."""
    config = dict(config)
    start = config.pop("deliver_policy", None)
    if isinstance(start, dict):
        config.pop("opt_start_seq", None)
        config.pop("opt_start_time", None)
        config.update(start)
    elif start is not None:
        config["deliver_policy"] = start
    filters = config.get("filter_subjects")
    if filters is not None:
        config.pop("filter_subject", None)
        if len(filters) == 1:
            # Permissions can only be given for a single filter in the request's subject.
            config["filter_subject"] = config.pop("filter_subjects")[0]
    return config
