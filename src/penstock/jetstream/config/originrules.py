"""
Which mirrors and sources make sense: the streams from which a stream may copy.

Part of `rules`, with the same promise: the checks, their order and their words are nats-server's.
An origin in this account is checked if it exists, but it may also be created later, or live on
another server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import ApiError, JetStreamError
from penstock.jetstream.config.patterns import TooManySteps, contained, first_overlap
from penstock.jetstream.config.stream import StreamConfig, is_valid_name
from penstock.protocol import errorcodes, transforms, wellknown
from penstock.protocol import subjects as patterns

Origin = Mapping[str, Any]
Find = Callable[[str], StreamConfig | None]
"""Returns the configuration of a stream in this account, if there is one of that name."""

SOURCES_MAX = 1024
TRANSFORMS_MAX = 512
"""Of all sources together."""
PREFIXED_MAX = 10_000
"""The pairs of a delivery prefix and a subject that are compared."""

NOT_ON_MIRRORS: tuple[tuple[str, ApiError], ...] = (
    ("first_seq", errorcodes.MIRROR_WITH_FIRST_SEQUENCE),
    ("subjects", errorcodes.MIRROR_WITH_SUBJECTS),
    ("sources", errorcodes.MIRROR_WITH_SOURCES),
    ("allow_msg_counter", errorcodes.MIRROR_WITH_COUNTERS),
    ("allow_atomic", errorcodes.MIRROR_WITH_ATOMIC_PUBLISH),
    ("allow_batched", errorcodes.MIRROR_WITH_BATCH_PUBLISH),
    ("allow_msg_schedules", errorcodes.MIRROR_WITH_MESSAGE_SCHEDULES),
)


def checked(config: StreamConfig, find: Find, *, pedantic: bool) -> StreamConfig:
    """Return the configuration completed from its origins, or raise the error in it."""
    origins = [*config.sources, *([config.mirror] if config.mirror else [])]
    if sum(len(each.get("subject_transforms") or ()) for each in origins) > TRANSFORMS_MAX:
        raise _invalid(f"too many subject transforms, maximum allowed is {TRANSFORMS_MAX}")
    if config.mirror is not None:
        config = _checked_mirror(config, config.mirror, find, pedantic)
    if config.sources:
        _check_sources(config, find)
    _check_prefixes(config, find)
    _check_cycles(config, find)
    return config


def _checked_mirror(
    config: StreamConfig, mirror: Origin, find: Find, pedantic: bool
) -> StreamConfig:
    for name, error in NOT_ON_MIRRORS:
        if getattr(config, name):
            raise JetStreamError(error)
    if mirror.get("consumer") is not None and not _is_consumer_valid(mirror):
        raise JetStreamError(errorcodes.MIRROR_DURABLE_CONSUMER_INVALID)
    if mirror.get("filter_subject") and mirror.get("subject_transforms"):
        raise JetStreamError(errorcodes.MIRROR_MULTIPLE_FILTERS_NOT_ALLOWED)
    if config.subject_delete_marker_ttl > 0:
        text = "subject delete markers forbidden on mirrors"
        raise JetStreamError(errorcodes.STREAM_INVALID_CONFIG, err=text)
    _check_mirror_transforms(mirror)
    if mirror.get("external") is not None:
        return config
    if not is_valid_name(mirror.get("name", "")):
        raise JetStreamError(errorcodes.MIRROR_INVALID_STREAM_NAME)
    origin = find(mirror["name"])
    if origin is None:
        return config
    if 0 < config.max_msg_size < origin.max_msg_size:
        raise JetStreamError(errorcodes.MIRROR_MAX_MESSAGE_SIZE_TOO_BIG)
    if pedantic and config.mirror_direct != origin.allow_direct:
        text = "origin stream has direct get set, mirror has it disabled"
        raise JetStreamError(errorcodes.PEDANTIC, err=text)
    return replace(config, mirror_direct=origin.allow_direct)


def _check_mirror_transforms(mirror: Origin) -> None:
    every = mirror.get("subject_transforms") or ()
    for each in every:
        _check_transform(
            each,
            errorcodes.MIRROR_INVALID_SUBJECT_FILTER,
            errorcodes.MIRROR_INVALID_TRANSFORM_DESTINATION,
        )
    if _clash(every, lambda filters: first_overlap(filters) is not None):
        raise JetStreamError(errorcodes.MIRROR_OVERLAPPING_SUBJECT_FILTERS)


def _check_sources(config: StreamConfig, find: Find) -> None:
    if config.allow_msg_schedules:
        raise JetStreamError(errorcodes.SOURCE_WITH_MESSAGE_SCHEDULES)
    if len(config.sources) > SOURCES_MAX:
        raise _invalid(f"too many sources, maximum allowed is {SOURCES_MAX}")
    known: set[tuple[str, ...]] = set()
    consumers: set[tuple[str, ...]] = set()
    for source in config.sources:
        if not is_valid_name(source.get("name", "")):
            raise JetStreamError(errorcodes.SOURCE_INVALID_STREAM_NAME)
        if source_key(source) in known:
            raise JetStreamError(errorcodes.SOURCE_DUPLICATE_DETECTED)
        known.add(source_key(source))
        if source.get("filter_subject") and source.get("subject_transforms"):
            raise JetStreamError(errorcodes.SOURCE_MULTIPLE_FILTERS_NOT_ALLOWED)
        _check_source_transforms(source)
        if source.get("consumer") is not None:
            _check_source_consumer(source, consumers)
        origin = find(source["name"]) if source.get("external") is None else None
        if origin is not None and 0 < config.max_msg_size < origin.max_msg_size:
            raise JetStreamError(errorcodes.SOURCE_MAX_MESSAGE_SIZE_TOO_BIG)


def _check_source_transforms(source: Origin) -> None:
    every = source.get("subject_transforms") or ()
    for each in every:
        _check_transform(
            each,
            errorcodes.SOURCE_INVALID_SUBJECT_FILTER,
            errorcodes.SOURCE_INVALID_TRANSFORM_DESTINATION,
        )
    if _clash(every, contained):
        raise JetStreamError(errorcodes.SOURCE_OVERLAPPING_SUBJECT_FILTERS)


def _clash(every: Sequence[Origin], test: Callable[[list[bytes]], bool]) -> bool:
    """Tell whether the sources of transforms overlap."""
    try:
        return test([_source(each) for each in every])
    except TooManySteps:
        raise _invalid("too many subject transforms have wildcards") from None


def _invalid(text: str) -> JetStreamError:
    return JetStreamError(errorcodes.STREAM_INVALID_CONFIG, err=text)


def _check_source_consumer(source: Origin, consumers: set[tuple[str, ...]]) -> None:
    if not _is_consumer_valid(source):
        raise JetStreamError(errorcodes.SOURCE_DURABLE_CONSUMER_INVALID)
    external = source.get("external") or {}
    key = (source["name"], external.get("api", ""), source["consumer"]["name"])
    if key in consumers:
        raise JetStreamError(errorcodes.SOURCE_DURABLE_CONSUMER_DUPLICATE_DETECTED)
    consumers.add(key)


def _is_consumer_valid(origin: Origin) -> bool:
    consumer = origin["consumer"]
    return (
        is_valid_name(consumer.get("name", ""))
        and patterns.is_valid_literal(consumer.get("deliver_subject", "").encode())
        and not any(
            origin.get(name) for name in ("opt_start_seq", "opt_start_time", "filter_subject")
        )
    )


def _check_transform(transform: Origin, source_error: ApiError, error: ApiError) -> None:
    source, destination = transform.get("src", ""), transform.get("dest", "")
    if source and not patterns.is_valid(source.encode()):
        raise JetStreamError(source_error, err=f"invalid subject {source}")
    try:
        transforms.check(source, destination)
    except transforms.InvalidTransform as invalid:
        raise JetStreamError(error, err=invalid) from None


def _source(transform: Origin) -> bytes:
    return str(transform.get("src", "")).encode()


def source_key(source: Origin) -> tuple[str, ...]:
    """Return the key that tells a source from the stream's other sources."""
    changes = source.get("subject_transforms") or ()
    external = source.get("external") or {}
    return (
        source["name"],
        external.get("api", ""),
        source.get("filter_subject", ""),
        *(f"{each.get('src', '')} {each.get('dest', '')}" for each in changes),
    )


def _check_prefixes(config: StreamConfig, find: Find) -> None:
    """Check that requests to another server do not come back to this one."""
    origins = [*config.sources, *([config.mirror] if config.mirror else [])]
    local = [find(origin["name"]) for origin in origins if origin.get("external") is None]
    # A prefix adds tokens to a subject, so only a subject with `>` can match both.
    subjects = [
        subject
        for each in {each.name: each for each in local if each is not None}.values()
        for subject in each.subjects
        if subject.endswith(">")
    ]
    externals = [each["external"] for each in origins if each.get("external") is not None]
    prefixes = dict.fromkeys(each["deliver"] for each in externals if each.get("deliver"))
    if len(prefixes) * len(subjects) > PREFIXED_MAX:
        raise _invalid("too many sources have delivery prefixes")
    for prefix in prefixes:
        if not patterns.is_valid_literal(prefix.encode()):
            raise JetStreamError(errorcodes.STREAM_INVALID_EXTERNAL_DELIVERY_SUBJECT, prefix=prefix)
        for subject in subjects:
            if patterns.overlap(subject.encode(), f"{prefix}.{subject}".encode()):
                raise JetStreamError(
                    errorcodes.STREAM_EXTERNAL_DELIVERY_PREFIX_OVERLAPS,
                    prefix=prefix,
                    subject=subject,
                )
    for prefix in [each["api"] for each in externals if each.get("api")]:
        if not patterns.is_valid_literal(prefix.encode()):
            text = (
                f'stream external api prefix "{prefix}" must be a valid subject without wildcards'
            )
            raise JetStreamError(errorcodes.STREAM_INVALID_CONFIG, err=text)
        if prefix == wellknown.API:
            raise JetStreamError(
                errorcodes.STREAM_EXTERNAL_API_OVERLAP, prefix=prefix, subject=wellknown.API
            )


def check_reach(config: StreamConfig, reaches: Callable[[str], bool]) -> None:
    """Check that remote origins can be reached: an API prefix that leads nowhere is a mistake."""
    for origin in [*config.sources, *([config.mirror] if config.mirror else [])]:
        prefix = (origin.get("external") or {}).get("api", "")
        if origin.get("external") is not None and not reaches(prefix):
            text = (
                f"the `external` API prefix {prefix!r} leads nowhere: name the other server under "
                "`jetstream.remotes` and say `$JS.<name>.API`, or import the API of its account"
            )
            raise JetStreamError(errorcodes.STREAM_INVALID_CONFIG, err=text)


def _check_cycles(config: StreamConfig, find: Find) -> None:
    """Check that no message of a stream can come back to it through other streams."""
    cycle = JetStreamError(errorcodes.STREAM_INVALID_CONFIG, err="detected cycle")
    todo, visited, seen = deque([config]), set(), {config.name}
    while todo:
        current = todo.popleft()
        visited.add(current.name)
        for source in current.sources:
            if source.get("external") is not None:
                continue
            if source["name"] in visited:
                if _may_pass(current.subjects, source.get("filter_subject", "")):
                    raise cycle
            elif source["name"] not in seen and (origin := find(source["name"])) is not None:
                seen.add(origin.name)
                todo.append(origin)
        mirror = current.mirror
        if mirror is not None and mirror.get("external") is None:
            if mirror["name"] in visited:
                raise cycle
            if mirror["name"] not in seen and (origin := find(mirror["name"])) is not None:
                seen.add(origin.name)
                todo.append(origin)


def _may_pass(subjects: tuple[str, ...], pattern: str) -> bool:
    return not pattern or any(
        patterns.overlap(subject.encode(), pattern.encode()) for subject in subjects
    )
