"""
What the streams and consumers of an account may take, and those of all accounts together.

An account has limits of its own; the server has some for everybody. Streams with a
`max_bytes` reserve that much; others take what they take, message by message.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import ApiError, JetStreamError
from penstock.jetstream.config.consumer import ConsumerConfig
from penstock.jetstream.config.consumerrules import MAX_ACK_PENDING
from penstock.protocol import errorcodes

if TYPE_CHECKING:
    from penstock.jetstream.config.stream import StreamConfig
    from penstock.jetstream.engine import Engine
    from penstock.jetstream.stream import Stream


def check_stream(engine: Engine, config: StreamConfig, existing: Stream | None = None) -> None:
    """See that an account may have a stream, and that the room it may take is there."""
    limits, is_memory = engine.limits, config.storage == "memory"
    if existing is None and 0 <= limits.streams_max <= len(engine.streams) + len(engine.creating):
        raise JetStreamError(errorcodes.MAXIMUM_STREAMS_LIMIT)
    if 0 < limits.consumers_max < config.max_consumers:
        raise JetStreamError(errorcodes.MAXIMUM_CONSUMERS_LIMIT)
    if limits.requires_max_bytes and config.max_bytes <= 0:
        raise JetStreamError(errorcodes.STREAM_MAX_BYTES_REQUIRED)
    most = limits.memory_stream_bytes_max if is_memory else limits.storage_stream_bytes_max
    if 0 < most < config.max_bytes:
        raise JetStreamError(errorcodes.STREAM_MAX_STREAM_BYTES_EXCEEDED)
    before = 0 if existing is None else max(existing.config.max_bytes, 0)
    wanted = max(config.max_bytes, 1) - before
    of_account = limits.memory_bytes_max if is_memory else limits.storage_bytes_max
    if 0 <= of_account < engine.reserved_bytes(config.storage) + wanted:
        raise JetStreamError(_out_of(config.storage))
    of_server = server_limit(engine, config.storage)
    if of_server is None:
        return
    reserved = sum(peer.reserved_bytes(config.storage) for peer in engine.peers)
    if reserved + wanted > of_server:
        raise JetStreamError(_out_of(config.storage))


def check_consumer(stream: Stream) -> None:
    """See that an account may have one more consumer on a stream."""
    if 0 < stream.engine.limits.consumers_max <= len(stream.consumers):
        raise JetStreamError(errorcodes.MAXIMUM_CONSUMERS_LIMIT)


def with_ack_pending(stream: Stream, config: ConsumerConfig) -> ConsumerConfig:
    """Return a consumer with the most open messages it may have, where the default is more."""
    most = stream.engine.limits.ack_pending_max
    is_given = config.max_ack_pending or stream.config.consumer_limits.get("max_ack_pending")
    if not is_given and config.ack_policy != "none" and 0 < most < MAX_ACK_PENDING:
        return replace(config, max_ack_pending=most)
    return config


def check_ack_pending(engine: Engine, config: ConsumerConfig) -> None:
    """See that a consumer does not ask for more open messages than the account allows."""
    most = engine.limits.ack_pending_max
    if 0 < most < config.max_ack_pending:
        raise JetStreamError(errorcodes.CONSUMER_MAX_PENDING_ACK_EXCESS, limit=most)


def has_limit(engine: Engine, storage: str) -> bool:
    """Tell whether each message has to be checked against what is left."""
    return account_limit(engine, storage) >= 0 or server_limit(engine, storage) is not None


def check_room(engine: Engine, storage: str, size: int) -> None:
    """See that there is room for so many bytes more."""
    of_account = account_limit(engine, storage)
    if 0 <= of_account < engine.used_bytes(storage) + size:
        raise JetStreamError(errorcodes.ACCOUNT_RESOURCES_EXCEEDED)
    of_server = server_limit(engine, storage)
    if of_server is None:
        return
    if sum(peer.used_bytes(storage) for peer in engine.peers) + size > of_server:
        raise JetStreamError(errorcodes.INSUFFICIENT_RESOURCES)


def check_restored(stream: Stream, size: int) -> None:
    """See that there is room for so many bytes more of a stream that comes back."""
    engine, storage = stream.engine, stream.config.storage
    try:
        check_room(engine, storage, size)
    except JetStreamError:
        raise JetStreamError(_out_of(storage)) from None


def account_limit(engine: Engine, storage: str) -> int:
    """Return what an account may store; -1 is no limit."""
    limits = engine.limits
    return limits.memory_bytes_max if storage == "memory" else limits.storage_bytes_max


def server_limit(engine: Engine, storage: str) -> int | None:
    """Return what all accounts may store together."""
    config = engine.config
    return config.max_memory_bytes if storage == "memory" else config.max_storage_bytes


def _out_of(storage: str) -> ApiError:
    if storage == "memory":
        return errorcodes.MEMORY_RESOURCES_EXCEEDED
    return errorcodes.STORAGE_RESOURCES_EXCEEDED
