"""
Which stream configurations make sense, and which changes to one.

The checks, their order and their sentences are nats-server's: clients match
them. `checked` fills in the defaults, `checked_update` compares old and new.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache
from typing import Any

from penstock.errors import JetStreamError
from penstock.jetstream.config import originrules
from penstock.jetstream.config.originrules import Find
from penstock.jetstream.config.patterns import TooManySteps, first_overlap
from penstock.jetstream.config.stream import StreamConfig, is_valid_name, metadata_bytes, name_bytes
from penstock.jetstream.store.file.disk import NAME_BYTES_MAX, is_file_name
from penstock.jetstream.store.values import SEQUENCE_MAX
from penstock.protocol import errorcodes, transforms
from penstock.protocol import subjects as patterns

DESCRIPTION_BYTES_MAX = 4 * 1024
METADATA_BYTES_MAX = 128 * 1024
REPLICAS_MAX = 5
SUBJECTS_MAX = 2048
TOKENS_MAX = 12 * 1024
"""The limit for all subjects of a list together."""
TOO_BROAD = "too many of the subjects have wildcards where others have tokens"
MAX_AGE_NS_MIN = DUPLICATE_WINDOW_NS_MIN = 100_000_000
MARKER_TTL_NS_MIN = 1_000_000_000
DUPLICATE_WINDOW_NS = 120_000_000_000

API_SPACES = (b"$JS.>", b"$JSC.>", b"$NRG.>")


def checked(config: StreamConfig, find: Find, *, pedantic: bool = False) -> StreamConfig:
    """Return the configuration with its defaults filled in, or raise the error in it."""
    _check_names(config)
    config = _with_defaults(config, pedantic)
    _refuse(config, CONFLICTS)
    config = _with_rollups(config, pedantic)
    _refuse(config, PERSISTENCE_CONFLICTS)
    config = originrules.checked(config, find, pedantic=pedantic)
    config = _with_subjects(config)
    _check_transform(config)
    config = _with_republish(config, pedantic)
    return _with_placement(config)


def checked_create(config: StreamConfig, find: Find, *, pedantic: bool = False) -> StreamConfig:
    """Check the configuration of a new stream."""
    if config.sealed:
        raise invalid("stream configuration for create can not be sealed")
    if config.mirror_direct and config.mirror is None:
        raise invalid("stream has no mirror but does have mirror direct")
    if config.first_seq > SEQUENCE_MAX:
        raise invalid(f"first sequence exceeds maximum of {SEQUENCE_MAX}")
    config = checked(config.with_static_metadata(), find, pedantic=pedantic)
    check_replicas(config)
    return config


def checked_update(
    old: StreamConfig, config: StreamConfig, find: Find, *, pedantic: bool = False
) -> StreamConfig:
    """Check that a stream may become `config`; return the completed configuration."""
    config = checked(config.with_static_metadata(), find, pedantic=pedantic)
    check_replicas(config)
    if config.mirror is not None and config.mirror != old.mirror:
        raise JetStreamError(errorcodes.STREAM_MIRROR_NOT_UPDATABLE)
    for is_wrong, text in FORBIDDEN_CHANGES:
        if is_wrong(old, config):
            raise invalid(text)
    if config.sealed:
        config = replace(
            config,
            max_age=0,
            discard="new",
            deny_delete=True,
            deny_purge=True,
            allow_rollup_hdrs=False,
        )
    return config


def invalid(text: str) -> JetStreamError:
    """Return the error for an invalid configuration."""
    return JetStreamError(errorcodes.STREAM_INVALID_CONFIG, err=text)


def _check_names(config: StreamConfig) -> None:
    if not is_valid_name(config.name):
        raise invalid("stream name is required and can not contain '.', '*', '>', '\\', '/'")
    if name_bytes(config.name) > NAME_BYTES_MAX:
        raise invalid(f"stream name is too long, maximum allowed is {NAME_BYTES_MAX}")
    if not is_file_name(config.name):
        raise invalid("stream name can not contain control characters")
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise invalid(f"stream description is too long, maximum allowed is {DESCRIPTION_BYTES_MAX}")
    if metadata_bytes(config.metadata) > METADATA_BYTES_MAX:
        raise invalid(f"stream metadata exceeds maximum size of {METADATA_BYTES_MAX} bytes")


def _with_defaults(config: StreamConfig, pedantic: bool) -> StreamConfig:
    if config.num_replicas > REPLICAS_MAX:
        raise invalid(f"maximum replicas is {REPLICAS_MAX}")
    if config.num_replicas < 0:
        raise JetStreamError(errorcodes.REPLICAS_COUNT_CANNOT_BE_NEGATIVE)
    limits: dict[str, Any] = {}
    for name in ("max_msgs", "max_msgs_per_subject", "max_bytes", "max_msg_size", "max_consumers"):
        value = getattr(config, name)
        if pedantic and value < -1:
            raise _pedantic(f"{name} must be set to -1")
        limits[name] = value if value > 0 else -1
    return replace(
        config,
        **limits,
        num_replicas=config.num_replicas or 1,
        duplicate_window=config.duplicate_window or _default_window(config, pedantic),
        persist_mode="" if config.persist_mode == "default" else config.persist_mode,
    )


def _default_window(config: StreamConfig, pedantic: bool) -> int:
    if config.mirror is not None or config.sources:
        return 0
    if 0 < config.max_age < DUPLICATE_WINDOW_NS:
        if pedantic:
            raise _pedantic("duplicate window cannot be bigger than max age")
        return config.max_age
    return DUPLICATE_WINDOW_NS


def _refuse(config: StreamConfig, conflicts: Conflicts) -> None:
    for is_wrong, text in conflicts:
        if is_wrong(config):
            raise invalid(text)


def _with_rollups(config: StreamConfig, pedantic: bool) -> StreamConfig:
    """Markers and schedules replace older messages, so they need rollups."""
    if config.subject_delete_marker_ttl > 0:
        if pedantic and not config.allow_msg_ttl:
            raise invalid("subject delete marker cannot be set if message TTLs are disabled")
        if pedantic and not config.allow_rollup_hdrs:
            raise invalid("subject delete marker cannot be set if roll-ups are disabled")
        config = replace(config, allow_msg_ttl=True, allow_rollup_hdrs=True, deny_purge=False)
    if config.allow_msg_schedules:
        if config.discard == "new":
            raise invalid("message scheduling cannot use discard new")
        if pedantic and not config.allow_rollup_hdrs:
            raise invalid("message scheduling cannot be set if roll-ups are disabled")
        config = replace(config, allow_rollup_hdrs=True, deny_purge=False)
    return config


def _check_transform(config: StreamConfig) -> None:
    if config.subject_transform is None:
        return
    source = config.subject_transform.get("src", "")
    if source and not patterns.is_valid(source.encode()):
        text = f"invalid subject {source}"
        raise JetStreamError(errorcodes.STREAM_TRANSFORM_INVALID_SOURCE, err=text)
    try:
        transforms.check(source, config.subject_transform.get("dest", ""))
    except transforms.InvalidTransform as error:
        raise JetStreamError(errorcodes.STREAM_TRANSFORM_INVALID_DESTINATION, err=error) from None


def _with_republish(config: StreamConfig, pedantic: bool) -> StreamConfig:
    if config.republish is None:
        return config
    source, target = config.republish.get("src", ""), config.republish.get("dest", "")
    if not source and pedantic:
        raise _pedantic("republish source can not be empty")
    source = source or ">"
    transform = config.subject_transform
    if source == target == ">" and transform and (transform.get("src"),) == config.subjects:
        # Republishing everything under its transformed subject forms no cycle.
        if pedantic:
            raise _pedantic("implicit republish based on subject transform")
        source = target = transform.get("dest", "")
    if any(patterns.overlap(target.encode(), each.encode()) for each in config.subjects):
        raise invalid("stream configuration for republish destination forms a cycle")
    try:
        if target:
            transforms.Transform(source.encode(), target.encode(), lambda: 0.0)
    except transforms.InvalidTransform:
        text = f"with transform from '{source}' to '{target}' not valid"
        raise invalid(f"stream configuration for republish {text}") from None
    return replace(config, republish=dict(config.republish) | {"src": source, "dest": target})


def _with_placement(config: StreamConfig) -> StreamConfig:
    if config.placement and config.placement.get("preferred"):
        raise invalid("preferred server not permitted in placement")
    return config if config.placement else replace(config, placement=None)


def _pedantic(text: str) -> JetStreamError:
    return JetStreamError(errorcodes.PEDANTIC, err=text)


def check_replicas(config: StreamConfig) -> None:
    if config.num_replicas > 1:
        raise JetStreamError(errorcodes.STREAM_REPLICAS_NOT_SUPPORTED)


def _with_subjects(config: StreamConfig) -> StreamConfig:
    if not config.subjects:
        has_origin = config.mirror is not None or config.sources
        return config if has_origin else replace(config, subjects=(config.name,))
    check_patterns("subjects", config.subjects)
    found = _first_overlap(config.subjects)
    # Check each one before its neighbours: the first complaint must be nats-server's.
    for subject in config.subjects[: found[0] + 1] if found else config.subjects:
        _check_subject(config, subject)
    if found is not None:
        subject, other = (config.subjects[index] for index in found)
        raise invalid(f'subject "{subject}" overlaps with "{other}"')
    return config


@lru_cache(maxsize=8)
def _first_overlap(subjects: tuple[str, ...]) -> tuple[int, int] | None:
    # Cached, because a change of a stream is checked twice.
    try:
        return first_overlap([subject.encode() for subject in subjects])
    except TooManySteps:
        raise invalid(TOO_BROAD) from None


def check_count(what: str, items: Collection[Any], count_max: int) -> None:
    """Refuse a list that is longer than any sensible one."""
    if len(items) > count_max:
        raise invalid(f"too many {what}, maximum allowed is {count_max}")


def check_patterns(what: str, patterns: tuple[str, ...]) -> None:
    """Refuse more subjects, or longer ones, than anybody needs."""
    check_count(what, patterns, SUBJECTS_MAX)
    if sum(each.count(".") + 1 for each in patterns) > TOKENS_MAX:
        raise invalid(f"too many tokens in {what}, maximum allowed is {TOKENS_MAX}")


def _check_subject(config: StreamConfig, text: str) -> None:
    subject = text.encode()
    if not subject or not patterns.is_valid(subject):
        raise invalid("invalid subject")
    if config.no_ack:
        return
    if subject == b">":
        raise invalid("capturing all subjects requires no-ack to be true")
    if not subject.startswith((b"$", b"*", b">")):
        return
    # To answer the server's own messages would mean answering those answers, for ever.
    in_api = any(patterns.overlap(subject, space) for space in API_SPACES)
    if in_api and not patterns.contains(b"$JS.EVENT.>", subject):
        raise invalid("subjects that overlap with jetstream api require no-ack to be true")
    in_system = patterns.overlap(subject, b"$SYS.>")
    if in_system and not patterns.contains(b"$SYS.ACCOUNT.>", subject):
        raise invalid("subjects that overlap with system api require no-ack to be true")


Conflicts = tuple[tuple[Callable[[StreamConfig], bool], str], ...]

CONFLICTS: Conflicts = (
    (lambda new: new.max_age < 0, "max age can not be negative"),
    (lambda new: 0 < new.max_age < MAX_AGE_NS_MIN, "max age needs to be >= 100ms"),
    (lambda new: new.duplicate_window < 0, "duplicates window can not be negative"),
    (
        lambda new: 0 < new.max_age < new.duplicate_window,
        "duplicates window can not be larger then max age",
    ),
    (
        lambda new: 0 < new.duplicate_window < DUPLICATE_WINDOW_NS_MIN,
        "duplicates window needs to be >= 100ms",
    ),
    (
        lambda new: new.deny_purge and new.allow_rollup_hdrs,
        "roll-ups require the purge permission",
    ),
    (
        lambda new: new.allow_msg_counter and new.discard == "new",
        "counter stream cannot use discard new",
    ),
    (
        lambda new: new.allow_msg_counter and new.allow_msg_ttl,
        "counter stream cannot use message TTLs",
    ),
    (
        lambda new: new.allow_msg_counter and new.allow_msg_schedules,
        "counter stream cannot use message schedules",
    ),
    (
        lambda new: new.allow_msg_counter and new.retention != "limits",
        "counter stream can only use limits retention",
    ),
    (
        lambda new: new.discard_new_per_subject and new.discard != "new",
        "discard new per subject requires discard new policy to be set",
    ),
    (
        lambda new: new.discard_new_per_subject and new.max_msgs_per_subject <= 0,
        "discard new per subject requires max msgs per subject > 0",
    ),
    (
        lambda new: 0 < new.subject_delete_marker_ttl < MARKER_TTL_NS_MIN,
        "subject delete marker TTL must be at least 1 second",
    ),
    (
        lambda new: new.subject_delete_marker_ttl < 0,
        "subject delete marker TTL must not be negative",
    ),
)

PERSISTENCE_CONFLICTS: Conflicts = (
    (
        lambda new: new.persist_mode == "async" and new.storage != "file",
        "async persist mode is only supported on file storage",
    ),
    (
        lambda new: new.persist_mode == "async" and new.num_replicas > 1,
        "async persist mode is not supported on replicated streams",
    ),
    (
        lambda new: new.persist_mode == "async" and new.allow_atomic,
        "async persist mode is not supported with atomic batch publish",
    ),
)

FORBIDDEN_CHANGES: tuple[tuple[Callable[[StreamConfig, StreamConfig], bool], str], ...] = (
    (
        lambda old, new: new.name != old.name,
        "stream configuration name must match original",
    ),
    (
        lambda old, new: new.storage != old.storage,
        "stream configuration update can not change storage type",
    ),
    (
        lambda old, new: (
            new.retention != old.retention and "workqueue" in (new.retention, old.retention)
        ),
        "stream configuration update can not change retention policy to/from workqueue",
    ),
    (
        lambda old, new: old.sealed and not new.sealed,
        "stream configuration update can not unseal a sealed stream",
    ),
    (
        lambda old, new: old.deny_delete and not new.deny_delete,
        "stream configuration update can not cancel deny message deletes",
    ),
    (
        lambda old, new: old.deny_purge and not new.deny_purge,
        "stream configuration update can not cancel deny purge",
    ),
    (
        lambda old, new: old.allow_msg_ttl and not new.allow_msg_ttl,
        "message TTL status can not be disabled",
    ),
    (
        lambda old, new: old.allow_msg_counter != new.allow_msg_counter,
        "stream configuration update can not change message counter setting",
    ),
    (
        lambda old, new: old.allow_msg_schedules and not new.allow_msg_schedules,
        "message schedules can not be disabled",
    ),
    (
        lambda old, new: old.persist_mode != new.persist_mode,
        "stream configuration update can not change persist mode",
    ),
)
