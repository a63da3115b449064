"""Every setting of a stream, under the headings of its help."""

from __future__ import annotations

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
from penstock.protocol import units


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
            limits[name] = units.read_size(value)
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
    _setting(
        "Configuration", "subjects", SUBJECTS, "Subjects to store (default: the stream's name)."
    ),
    _setting("Configuration", "description", TEXT, "Description."),
    _setting("Configuration", "storage", one_of("file", "memory"), "Storage of the messages."),
    _setting(
        "Configuration",
        "retention",
        one_of("limits", "interest", "workqueue"),
        "Keep messages up to the limits, while consumers need them, or until acked once.",
    ),
    _setting("Configuration", "num_replicas", NUMBER, "Copies in a cluster.", flag="--replicas"),
    _setting("Configuration", "compression", one_of("none", "s2"), "Compression of the files."),
    _setting("Configuration", "metadata", METADATA, "Metadata of your own; repeatable."),
    _setting("Limits", "max_msgs", LIMIT, "Maximum messages; -1 is no limit."),
    _setting("Limits", "max_bytes", SIZE, "Maximum bytes."),
    _setting("Limits", "max_age", DURATION, "Age at which messages expire; 0 is never."),
    _setting("Limits", "max_msgs_per_subject", LIMIT, "Maximum messages per subject."),
    _setting("Limits", "max_msg_size", SIZE, "Maximum size of a message."),
    _setting("Limits", "max_consumers", LIMIT, "Maximum consumers."),
    _setting("Limits", "consumer_limits", CONSUMER_LIMITS, "Limits of its consumers."),
    _setting("Limits", "discard", one_of("old", "new"), "Discard old or new messages when full."),
    _setting(
        "Limits",
        "discard_new_per_subject",
        SWITCH,
        "Also refuse new messages when their subject is full.",
    ),
    _setting(
        "Rules",
        "duplicate_window",
        DURATION,
        "Time that message ids are remembered.",
        flag="--dupe-window",
    ),
    _setting("Rules", "allow_direct", SWITCH, "Let any replica answer reads."),
    _setting("Rules", "mirror_direct", SWITCH, "Let mirrors answer reads for their origin."),
    _setting(
        "Rules",
        "allow_rollup_hdrs",
        SWITCH,
        "Let a message replace all earlier ones.",
        flag="--allow-rollup",
    ),
    _setting("Rules", "deny_delete", SWITCH, "Refuse to delete messages, for good."),
    _setting("Rules", "deny_purge", SWITCH, "Refuse to purge, for good."),
    _setting("Rules", "sealed", SWITCH, "Refuse any change, for good.", flag="--seal"),
    _setting("Rules", "no_ack", SWITCH, "Do not ack published messages.", off="--ack"),
    _setting("Rules", "allow_msg_ttl", SWITCH, "Let messages have their own TTL."),
    _setting(
        "Rules",
        "subject_delete_marker_ttl",
        DURATION,
        "Time to keep a marker after a subject's last message expires.",
    ),
    _setting("Rules", "allow_msg_counter", SWITCH, "Make each subject a counter."),
    _setting("Rules", "allow_msg_schedules", SWITCH, "Accept messages with a schedule."),
    _setting("Rules", "allow_atomic", SWITCH, "Accept batches that are stored as one."),
    _setting("Rules", "allow_batched", SWITCH, "Accept batches that are acked as one."),
    _setting("Rules", "persist_mode", one_of("default", "async"), "When writes reach the disk."),
    _setting("Rules", "first_seq", NUMBER, "Sequence of the first message."),
    _setting("Other streams", "mirror", NAMED, "Mirror this stream; empty ends it."),
    _setting(
        "Other streams", "sources", SOURCES, "Copy from this stream; repeatable.", flag="--source"
    ),
    _setting(
        "Other streams",
        "subject_transform",
        MAPPING,
        "Rename subjects on arrival.",
        flag="--transform",
    ),
    _setting("Other streams", "republish", MAPPING, "Republish stored messages."),
    _setting("Other streams", "placement", PLACEMENT, "Cluster of the stream."),
)
"""All settings; the fields are those of the API's StreamConfig."""
