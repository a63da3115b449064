"""
Which stream configurations make sense, and which changes to one.

The checks, their order and their sentences are nats-server's: clients match
them. `checked` fills in the defaults, `checked_update` compares old and new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock import subjects as patterns
from penstock.errors import JetStreamError
from penstock.jetstream import errorcodes
from penstock.jetstream.model import StreamConfig

NAME_CHARACTERS_MAX = 255
DESCRIPTION_BYTES_MAX = 4 * 1024
METADATA_BYTES_MAX = 128 * 1024
REPLICAS_MAX = 5
MAX_AGE_NS_MIN = DUPLICATE_WINDOW_NS_MIN = 100_000_000
DUPLICATE_WINDOW_NS = 120_000_000_000

API_SPACES = (b"$JS.>", b"$JSC.>", b"$NRG.>")


def is_valid_name(name: str) -> bool:
    """Tell whether a stream or a consumer may be called so."""
    return bool(name) and not any(
        character in ".*>\\/" or character.isspace() for character in name
    )


def checked(config: StreamConfig, *, pedantic: bool = False) -> StreamConfig:
    """Return the configuration with its defaults filled in, or raise what is wrong with it."""
    _check_names(config)
    config = _with_defaults(config, pedantic)
    _check_supported(config)
    for is_wrong, text in CONFLICTS:
        if is_wrong(config):
            raise invalid(text)
    return _with_subjects(config)


def checked_create(config: StreamConfig, *, pedantic: bool = False) -> StreamConfig:
    """Check the configuration of a new stream."""
    if config.sealed:
        raise invalid("stream configuration for create can not be sealed")
    if config.mirror_direct and config.mirror is None:
        raise invalid("stream has no mirror but does have mirror direct")
    config = checked(config.with_static_metadata(), pedantic=pedantic)
    _check_replicas(config)
    return config


def checked_update(
    old: StreamConfig, config: StreamConfig, *, pedantic: bool = False
) -> StreamConfig:
    """Check that a stream may become what `config` says; return what it then is."""
    config = checked(config.with_static_metadata(), pedantic=pedantic)
    _check_replicas(config)
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
    """Return the error for a configuration that makes no sense."""
    return JetStreamError(errorcodes.STREAM_INVALID_CONFIG, err=text)


def overlap(one: StreamConfig, other: StreamConfig) -> bool:
    """Tell whether some subject would be stored by both streams."""
    return any(
        patterns.overlap(mine.encode(), theirs.encode())
        for mine in one.subjects
        for theirs in other.subjects
    )


def _check_names(config: StreamConfig) -> None:
    if not is_valid_name(config.name):
        raise invalid("stream name is required and can not contain '.', '*', '>', '\\', '/'")
    if len(config.name) > NAME_CHARACTERS_MAX:
        raise invalid(f"stream name is too long, maximum allowed is {NAME_CHARACTERS_MAX}")
    if len(config.description.encode()) > DESCRIPTION_BYTES_MAX:
        raise invalid(f"stream description is too long, maximum allowed is {DESCRIPTION_BYTES_MAX}")
    metadata_bytes = sum(
        len(key.encode()) + len(value.encode()) for key, value in config.metadata.items()
    )
    if metadata_bytes > METADATA_BYTES_MAX:
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
        duplicate_window=config.duplicate_window or _default_window(config.max_age, pedantic),
    )


def _default_window(max_age: int, pedantic: bool) -> int:
    if 0 < max_age < DUPLICATE_WINDOW_NS:
        if pedantic:
            raise _pedantic("duplicate window cannot be bigger than max age")
        return max_age
    return DUPLICATE_WINDOW_NS


def _pedantic(text: str) -> JetStreamError:
    return JetStreamError(errorcodes.PEDANTIC, err=text)


def _check_supported(config: StreamConfig) -> None:
    names = config.unsupported_options()
    if names:
        raise invalid(f"stream configuration option `{names[0]}` is not supported yet")
    if config.compression != "none":
        raise invalid(f'stream compression "{config.compression}" is not supported yet')


def _check_replicas(config: StreamConfig) -> None:
    if config.num_replicas > 1:
        raise JetStreamError(errorcodes.STREAM_REPLICAS_NOT_SUPPORTED)


def _with_subjects(config: StreamConfig) -> StreamConfig:
    if not config.subjects:
        return replace(config, subjects=(config.name,))
    for index, subject in enumerate(config.subjects):
        _check_subject(config, subject)
        for other in config.subjects[index + 1 :]:
            if patterns.overlap(other.encode(), subject.encode()):
                raise invalid(f'subject "{subject}" overlaps with "{other}"')
    return config


def _check_subject(config: StreamConfig, text: str) -> None:
    subject = text.encode()
    if not subject or not patterns.is_valid(subject):
        raise invalid("invalid subject")
    if config.no_ack:
        return
    if subject == b">":
        raise invalid("capturing all subjects requires no-ack to be true")
    # Answering what the server itself says would answer those answers, for ever.
    in_api = any(patterns.overlap(subject, space) for space in API_SPACES)
    if in_api and not patterns.contains(b"$JS.EVENT.>", subject):
        raise invalid("subjects that overlap with jetstream api require no-ack to be true")
    in_system = patterns.overlap(subject, b"$SYS.>")
    if in_system and not patterns.contains(b"$SYS.ACCOUNT.>", subject):
        raise invalid("subjects that overlap with system api require no-ack to be true")


CONFLICTS: tuple[tuple[Callable[[StreamConfig], bool], str], ...] = (
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
        lambda new: new.discard_new_per_subject and new.discard != "new",
        "discard new per subject requires discard new policy to be set",
    ),
    (
        lambda new: new.discard_new_per_subject and new.max_msgs_per_subject <= 0,
        "discard new per subject requires max msgs per subject > 0",
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
)
