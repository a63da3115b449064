"""
The configuration of a stream: every option once, JSON in and out.

The names are those of the JSON that clients send and that is stored; durations are integers of
nanoseconds. `StreamConfig` holds values, `rules` says which of them make sense.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from penstock.jetstream.store.values import StoreLimits
from penstock.protocol import headers, jsontext, strictjson
from penstock.protocol.version import API_LEVEL, NATS_VERSION

API_LEVEL_HEADER = b"Nats-Required-Api-Level"
REQUIRED_LEVEL = "_nats.req.level"
SERVER_LEVEL = "_nats.level"
SERVER_VERSION = "_nats.ver"

RETENTIONS = ("limits", "interest", "workqueue")
DISCARDS = ("old", "new")
STORAGES = ("file", "memory")

CONSUMER_LIMITS = {"inactive_threshold": "time.Duration", "max_ack_pending": "int"}
SUBJECT_TRANSFORM = {"src": "subject", "dest": "subject"}
STREAM_CONSUMER = {"name": "string", "deliver_subject": "subject"}
STREAM_SOURCE = {
    "name": "string",
    "opt_start_seq": "uint64",
    "opt_start_time": "time.Time",
    "filter_subject": "subject",
    "subject_transforms": [SUBJECT_TRANSFORM],
    "external": {"api": "subject", "deliver": "subject"},
    "consumer": STREAM_CONSUMER,
}


ALWAYS_TOLD = ("name", "src", "dest", "api", "deliver")
"""Fields of such objects that an answer includes even if they are empty."""


def is_valid_name(name: str) -> bool:
    """Tell whether a stream or a consumer may have this name."""
    return bool(name) and not any(
        character in ".*>\\/" or character.isspace() for character in name
    )


def metadata_bytes(metadata: Mapping[str, str]) -> int:
    """Return the size of the metadata of a stream or a consumer."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())


def name_bytes(name: str) -> int:
    """Return the length of a name on disk."""
    return len(name.encode(errors="replace"))


def is_api_level_known(header: bytes) -> bool:
    """Tell whether this server is new enough for a request with these headers."""
    text = headers.get(header, API_LEVEL_HEADER)
    level = headers.number(text)
    return not text or (level is not None and level <= API_LEVEL)


def without_api_level(header: bytes) -> bytes | None:
    """Return the headers without the required API level; None if it is too high for this server."""
    if b"\r\n" + API_LEVEL_HEADER not in header:
        return header
    return headers.remove(header, API_LEVEL_HEADER) if is_api_level_known(header) else None


def option(default: Any, kind: Any, *, omit_empty: bool = False, factory: Any = None) -> Any:
    """Declare an option: its JSON type, and whether an answer leaves it out when unset."""
    metadata = {"kind": kind, "omit_empty": omit_empty}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """The options of a stream, in the order in which nats-server answers them."""

    name: str = option("", "string")
    description: str = option("", "string", omit_empty=True)
    subjects: tuple[str, ...] = option((), "[]subject", omit_empty=True)
    retention: str = option("limits", RETENTIONS)
    max_consumers: int = option(0, "int")
    max_msgs: int = option(0, "int64")
    max_bytes: int = option(0, "int64")
    max_age: int = option(0, "time.Duration")
    max_msgs_per_subject: int = option(0, "int64")
    max_msg_size: int = option(0, "int32", omit_empty=True)
    discard: str = option("old", DISCARDS)
    storage: str = option("file", STORAGES)
    num_replicas: int = option(0, "int")
    no_ack: bool = option(False, "bool", omit_empty=True)
    duplicate_window: int = option(0, "time.Duration", omit_empty=True)
    placement: Mapping[str, Any] | None = option(
        None,
        {"cluster": "string", "tags": "[]string", "preferred": "string"},
        omit_empty=True,
    )
    mirror: Mapping[str, Any] | None = option(None, STREAM_SOURCE, omit_empty=True)
    sources: tuple[Mapping[str, Any], ...] = option((), [STREAM_SOURCE], omit_empty=True)
    compression: str = option(
        "none", strictjson.OneOf(("none", "s2"), "unknown compression algorithm")
    )
    first_seq: int = option(0, "uint64", omit_empty=True)
    subject_transform: Mapping[str, Any] | None = option(None, SUBJECT_TRANSFORM, omit_empty=True)
    republish: Mapping[str, Any] | None = option(
        None, SUBJECT_TRANSFORM | {"headers_only": "bool"}, omit_empty=True
    )
    allow_direct: bool = option(False, "bool")
    mirror_direct: bool = option(False, "bool")
    discard_new_per_subject: bool = option(False, "bool", omit_empty=True)
    sealed: bool = option(False, "bool")
    deny_delete: bool = option(False, "bool")
    deny_purge: bool = option(False, "bool")
    allow_rollup_hdrs: bool = option(False, "bool")
    consumer_limits: Mapping[str, int] = option(None, CONSUMER_LIMITS, factory=dict)
    allow_msg_ttl: bool = option(False, "bool")
    subject_delete_marker_ttl: int = option(0, "time.Duration", omit_empty=True)
    allow_msg_counter: bool = option(False, "bool", omit_empty=True)
    allow_atomic: bool = option(False, "bool", omit_empty=True)
    allow_msg_schedules: bool = option(False, "bool", omit_empty=True)
    persist_mode: str = option("", ("", "default", "async"), omit_empty=True)
    allow_batched: bool = option(False, "bool", omit_empty=True)
    metadata: Mapping[str, str] = option(None, "map[string]string", omit_empty=True, factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StreamConfig:
        """Build a configuration from fields that `strictjson` has checked, or that were stored."""
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name != "pedantic"
        }
        return cls(**options)

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as it is stored."""
        document = {}
        for item in fields(self):
            value, kind = getattr(self, item.name), item.metadata["kind"]
            if value or not item.metadata["omit_empty"]:
                document[item.name] = _to_json(value, kind)
        return document

    @cached_property
    def encoded(self) -> jsontext.Encoded:
        """The configuration as it is stored, encoded as JSON: a list has those of many streams."""
        return jsontext.Encoded(jsontext.encode(self.to_json()))

    def to_answer(self) -> dict[str, Any]:
        """Return the configuration for an answer, with the server's metadata."""
        document = self.to_json()
        versions = {SERVER_LEVEL: str(API_LEVEL), SERVER_VERSION: NATS_VERSION}
        document["metadata"] = dict(sorted((dict(self.metadata) | versions).items()))
        return document

    def with_static_metadata(self) -> StreamConfig:
        """Return the configuration with the API level it needs, without answer-only metadata."""
        told = (SERVER_LEVEL, SERVER_VERSION)
        metadata = {key: value for key, value in self.metadata.items() if key not in told}
        return replace(self, metadata=metadata | {REQUIRED_LEVEL: str(self._required_level())})

    def _required_level(self) -> int:
        """Return the API level that a client must know to use such a stream."""
        if self.allow_batched:
            return 4
        newer = (self.allow_msg_counter, self.allow_atomic, self.allow_msg_schedules)
        if any(newer) or self.persist_mode == "async":
            return 2
        return 1 if self.allow_msg_ttl or self.subject_delete_marker_ttl > 0 else 0


def _to_json(value: Any, kind: Any) -> Any:
    """Return a value for JSON: objects in the order of their fields, without empty ones."""
    if isinstance(kind, dict) and value is not None:
        told = kind.keys() & ALWAYS_TOLD if kind is not STREAM_CONSUMER else ()
        return {
            name: _to_json(value.get(name, ""), kind[name])
            for name in kind
            if value.get(name) or name in told
        }
    if isinstance(value, list | tuple):
        return [_to_json(item, kind[0] if isinstance(kind, list) else None) for item in value]
    return value


STREAM_CONFIG_FIELDS = {item.name: item.metadata["kind"] for item in fields(StreamConfig)}
STREAM_REQUEST_FIELDS = STREAM_CONFIG_FIELDS | {"pedantic": "bool"}
"""The fields that STREAM.CREATE and STREAM.UPDATE may carry."""


def store_limits(config: StreamConfig) -> StoreLimits:
    """Return the store limits of a configuration, where 0 is no limit."""
    discards_old = config.discard == "old"
    return StoreLimits(
        messages_max=max(config.max_msgs, 0) if discards_old else 0,
        bytes_max=max(config.max_bytes, 0) if discards_old else 0,
        # Where messages may set their own time to live, `expiry` checks the age of each.
        age_ns_max=0 if config.allow_msg_ttl else config.max_age,
        messages_per_subject_max=max(config.max_msgs_per_subject, 0),
        compresses=config.compression != "none",
        ids_ns_max=config.duplicate_window,
    )
