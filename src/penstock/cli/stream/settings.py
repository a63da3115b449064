"""Every setting of a stream, under the headings of its help."""

from __future__ import annotations

from penstock.cli import values as units
from penstock.cli.settings import (
    DURATION,
    LIMIT,
    MAPPING,
    METADATA,
    NAMED,
    NUMBER,
    SIZE,
    SOURCES,
    SUBJECTS,
    SWITCH,
    TEXT,
    Kind,
    Setting,
    document,
    one_of,
)


def _placement(text: str) -> dict[str, str]:
    return {"cluster": text}


def _consumer_limits(text: str) -> dict[str, int]:
    """Return the limits of `max_ack_pending=100,inactive_threshold=5m`."""
    limits = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name == "inactive_threshold":
            limits[name] = units.read_duration(value)
        elif name == "max_ack_pending":
            limits[name] = units.read_number(value)
        else:
            raise ValueError(f"`{name}` is unknown; hint: inactive_threshold or max_ack_pending")
    return limits


def _show_consumer_limits(limits: dict[str, int]) -> str:
    kinds = {"inactive_threshold": DURATION, "max_ack_pending": NUMBER}
    return ", ".join(f"{name}={kinds[name].show(value)}" for name, value in limits.items())


PLACEMENT = Kind("CLUSTER|JSON", document(_placement), NAMED.show)
CONSUMER_LIMITS = Kind("NAME=VALUE,…", document(_consumer_limits), _show_consumer_limits)


def _setting(section: str, field: str, kind: Kind, doc: str, **names: str) -> Setting:
    return Setting(field=field, kind=kind, doc=doc, section=section, **names)


STREAM_SETTINGS = (
    _setting("Configuration", "subjects", SUBJECTS, "Subjects it stores; its name, if none."),
    _setting("Configuration", "description", TEXT, "What it is for."),
    _setting("Configuration", "storage", one_of("file", "memory"), "Where messages are kept."),
    _setting(
        "Configuration",
        "retention",
        one_of("limits", "interest", "workqueue"),
        "How long: up to the limits, while consumers want them, or until one acked them.",
    ),
    _setting("Configuration", "num_replicas", NUMBER, "Copies in a cluster.", flag="--replicas"),
    _setting("Configuration", "compression", one_of("none", "s2"), "How files are compressed."),
    _setting("Configuration", "metadata", METADATA, "A note of your own; may be repeated."),
    _setting("Limits", "max_msgs", LIMIT, "Messages kept; -1 is no limit."),
    _setting("Limits", "max_bytes", SIZE, "Bytes kept."),
    _setting("Limits", "max_age", DURATION, "Age at which messages go; 0 is never."),
    _setting("Limits", "max_msgs_per_subject", LIMIT, "Messages kept of each subject."),
    _setting("Limits", "max_msg_size", SIZE, "Largest message taken."),
    _setting("Limits", "max_consumers", LIMIT, "Consumers it may have."),
    _setting("Limits", "consumer_limits", CONSUMER_LIMITS, "Limits of its consumers."),
    _setting("Limits", "discard", one_of("old", "new"), "What goes when it is full."),
    _setting(
        "Limits",
        "discard_new_per_subject",
        SWITCH,
        "Refuse a new message also when its subject is full.",
    ),
    _setting(
        "Rules",
        "duplicate_window",
        DURATION,
        "How long a message id is remembered.",
        flag="--dupe-window",
    ),
    _setting("Rules", "allow_direct", SWITCH, "Let any replica answer reads."),
    _setting("Rules", "mirror_direct", SWITCH, "Let mirrors answer reads for their origin."),
    _setting(
        "Rules",
        "allow_rollup_hdrs",
        SWITCH,
        "Let a message replace all before it.",
        flag="--allow-rollup",
    ),
    _setting("Rules", "deny_delete", SWITCH, "Refuse to delete messages, for good."),
    _setting("Rules", "deny_purge", SWITCH, "Refuse to purge, for good."),
    _setting("Rules", "sealed", SWITCH, "Refuse any change, for good.", flag="--seal"),
    _setting("Rules", "no_ack", SWITCH, "Do not acknowledge what is published.", off="--ack"),
    _setting("Rules", "allow_msg_ttl", SWITCH, "Let messages say how long they live."),
    _setting(
        "Rules",
        "subject_delete_marker_ttl",
        DURATION,
        "Leave a marker for so long where the last message of a subject aged out.",
    ),
    _setting("Rules", "allow_msg_counter", SWITCH, "Make each subject a counter."),
    _setting("Rules", "allow_msg_schedules", SWITCH, "Let messages be published later."),
    _setting("Rules", "allow_atomic", SWITCH, "Take batches that are stored as one."),
    _setting("Rules", "allow_batched", SWITCH, "Take batches that are acked as one."),
    _setting("Rules", "persist_mode", one_of("default", "async"), "When writes are on disk."),
    _setting("Rules", "first_seq", NUMBER, "Sequence of its first message."),
    _setting("Other streams", "mirror", NAMED, "Be a copy of that stream; empty ends it."),
    _setting(
        "Other streams", "sources", SOURCES, "Take in that stream; repeatable.", flag="--source"
    ),
    _setting(
        "Other streams",
        "subject_transform",
        MAPPING,
        "Rename subjects as they come in.",
        flag="--transform",
    ),
    _setting("Other streams", "republish", MAPPING, "Publish again what was stored."),
    _setting("Other streams", "placement", PLACEMENT, "Cluster to live in."),
)
"""All of them; the fields are those of the API's StreamConfig."""
