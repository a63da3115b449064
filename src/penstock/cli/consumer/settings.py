"""Every setting of a consumer, under the headings of its help."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.cli import values as units
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
"""Where to start: one option on the command line, three fields in the API."""


def read_start(text: str, now: datetime) -> dict[str, Any]:
    """Return the fields that say where to start: a policy, a sequence, a time, or how long ago."""
    policy = text.lower().replace("-", "_")
    if policy in DELIVER_POLICIES:
        return {"deliver_policy": policy}
    if text.isdigit():
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": int(text)}
    try:
        time = units.rfc3339(units.read_moment(text, now))
    except ValueError:
        hint = f"{', '.join(DELIVER_POLICIES)}, a sequence, a time, or 1h for an hour ago"
        raise ValueError(f"`{text}` is no place to start; hint: {hint}") from None
    return {"deliver_policy": "by_start_time", "opt_start_time": time}


def _setting(section: str, field: str, kind: Kind, doc: str, **names: str) -> Setting:
    return Setting(field=field, kind=kind, doc=doc, section=section, **names)


CONSUMER_SETTINGS = (
    _setting("What", "filter_subjects", SUBJECTS, "Only these subjects.", flag="--filter"),
    _setting("What", "deliver_policy", START, "Where to start; all.", flag="--deliver"),
    _setting("What", "headers_only", SWITCH, "Headers without payloads."),
    _setting(
        "What",
        "replay_policy",
        one_of("instant", "original"),
        "As fast as possible, or with the pauses of the original.",
        flag="--replay",
    ),
    _setting("What", "description", TEXT, "What it is for."),
    _setting("What", "metadata", METADATA, "A note of your own; may be repeated."),
    _setting(
        "Acks",
        "ack_policy",
        one_of("explicit", "all", "none", "flow_control"),
        "Each message, all up to one, or none; explicit.",
        flag="--ack",
    ),
    _setting("Acks", "ack_wait", DURATION, "When a message without ack comes again; 30s."),
    _setting("Acks", "backoff", DURATIONS, "When it comes again, try by try."),
    _setting("Acks", "max_deliver", LIMIT, "How often it comes; -1 is no limit."),
    _setting("Acks", "max_ack_pending", LIMIT, "Messages that may wait for acks; 1000."),
    _setting("Acks", "sample_freq", TEXT, "Share of acks reported as metrics: 10%."),
    _setting("Pull", "max_waiting", NUMBER, "Pull requests that may wait; 512."),
    _setting("Pull", "max_batch", NUMBER, "Largest batch of one pull.", flag="--max-pull-batch"),
    _setting(
        "Pull", "max_expires", DURATION, "Longest wait of one pull.", flag="--max-pull-expires"
    ),
    _setting("Pull", "max_bytes", SIZE, "Most bytes of one pull.", flag="--max-pull-bytes"),
    _setting("Pull", "priority_groups", TEXTS, "Names of its priority groups."),
    _setting(
        "Pull",
        "priority_policy",
        one_of("none", "overflow", "pinned_client", "prioritized"),
        "How groups take turns.",
    ),
    _setting("Pull", "priority_timeout", DURATION, "When a pinned client loses its pin."),
    _setting(
        "Push",
        "deliver_subject",
        TEXT,
        "Push to this subject; without, it is pulled.",
        flag="--push",
    ),
    _setting("Push", "deliver_group", TEXT, "Queue group that shares it.", flag="--queue"),
    _setting("Push", "flow_control", SWITCH, "Wait for the receiver; needs a heartbeat."),
    _setting("Push", "idle_heartbeat", DURATION, "Sign of life while idle.", flag="--heartbeat"),
    _setting("Push", "rate_limit_bps", NUMBER, "Most bits in a second.", flag="--rate-limit"),
    _setting("Life", "inactive_threshold", DURATION, "Go when unused for so long."),
    _setting("Life", "mem_storage", SWITCH, "Keep its state in memory.", flag="--memory"),
    _setting("Life", "num_replicas", NUMBER, "Copies in a cluster.", flag="--replicas"),
    _setting("Life", "pause_until", TIME, "Deliver nothing until then."),
    _setting("Life", "direct", SWITCH, "Made by a server for a mirror or source."),
    _setting("Life", "sourcing", SWITCH, "Made by a server for a source."),
)
"""All of them; the fields are those of the API's ConsumerConfig, except as `as_fields` says."""


def as_fields(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration for the API, where a start is three fields and a filter has two."""
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
            # One filter in the request's subject is what permissions can be given for.
            config["filter_subject"] = config.pop("filter_subjects")[0]
    return config
