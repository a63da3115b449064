"""
The limits on the streams and consumers of an account, and of all accounts together.

An account has limits of its own; the server has some for all accounts. Streams with a `max_bytes`
reserve that much; others use space message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import ApiError, JetStreamError
from penstock.jetstream.config.consumerrules import MAX_ACK_PENDING
from penstock.protocol import errorcodes

if TYPE_CHECKING:
    from penstock.config.accounts import JetStreamLimits
    from penstock.config.jetstream import JetStreamConfig
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.config.stream import StreamConfig
    from penstock.jetstream.shared import Tenant


class Quota:
    """Checks the requests of one account against its limits, and against those of the server."""

    def __init__(
        self,
        limits: JetStreamLimits,
        config: JetStreamConfig,
        tenant: Tenant,
        tenants: Sequence[Tenant],
    ) -> None:
        """`tenants` are all accounts of the server; `tenant` is the account with these limits."""
        self.limits = limits
        self._config = config
        self._tenant = tenant
        self._tenants = tenants

    def check_stream(self, config: StreamConfig, existing: StreamConfig | None = None) -> None:
        """Refuse a stream that the account may not have, or that there is no room for."""
        limits, is_memory = self.limits, config.storage == "memory"
        if existing is None and 0 <= limits.max_streams <= self._tenant.stream_count:
            raise JetStreamError(errorcodes.MAXIMUM_STREAMS_LIMIT)
        if 0 < limits.max_consumers < config.max_consumers:
            raise JetStreamError(errorcodes.MAXIMUM_CONSUMERS_LIMIT)
        if limits.max_bytes_required and config.max_bytes <= 0:
            raise JetStreamError(errorcodes.STREAM_MAX_BYTES_REQUIRED)
        most = limits.memory_max_stream_bytes if is_memory else limits.store_max_stream_bytes
        if 0 < most < config.max_bytes:
            raise JetStreamError(errorcodes.STREAM_MAX_STREAM_BYTES_EXCEEDED)
        before = 0 if existing is None else max(existing.max_bytes, 0)
        self._check_reserved(config.storage, max(config.max_bytes, 1) - before)

    def _check_reserved(self, storage: str, wanted: int) -> None:
        of_account, of_server = self._account_limit(storage), self._server_limit(storage)
        if 0 <= of_account < self._tenant.reserved_bytes(storage) + wanted:
            raise JetStreamError(_out_of(storage))
        if of_server is None:
            return
        reserved = sum(each.reserved_bytes(storage) for each in self._tenants)
        if reserved + wanted > of_server:
            raise JetStreamError(_out_of(storage))

    def check_consumer(self, count: int) -> None:
        """Refuse one more consumer on a stream that has `count` of them, if that is too many."""
        if 0 < self.limits.max_consumers <= count:
            raise JetStreamError(errorcodes.MAXIMUM_CONSUMERS_LIMIT)

    def with_ack_pending(self, config: ConsumerConfig, stream: StreamConfig) -> ConsumerConfig:
        """Return a consumer with the account's `max_ack_pending`, if the default exceeds it."""
        most = self.limits.max_ack_pending
        is_given = config.max_ack_pending or stream.consumer_limits.get("max_ack_pending")
        if not is_given and config.ack_policy != "none" and 0 < most < MAX_ACK_PENDING:
            return replace(config, max_ack_pending=most)
        return config

    def check_ack_pending(self, config: ConsumerConfig) -> None:
        """Refuse a consumer with a higher `max_ack_pending` than the account allows."""
        most = self.limits.max_ack_pending
        if 0 < most < config.max_ack_pending:
            raise JetStreamError(errorcodes.CONSUMER_MAX_PENDING_ACK_EXCESS, limit=most)

    def has_limit(self, storage: str) -> bool:
        """Tell whether each message has to be checked against the remaining room."""
        return self._account_limit(storage) >= 0 or self._server_limit(storage) is not None

    def check_room(self, storage: str, size: int) -> None:
        """Refuse a message of `size` bytes if there is no room for it."""
        of_account = self._account_limit(storage)
        if 0 <= of_account < self._tenant.used_bytes(storage) + size:
            raise JetStreamError(errorcodes.ACCOUNT_RESOURCES_EXCEEDED)
        of_server = self._server_limit(storage)
        if of_server is None:
            return
        if sum(each.used_bytes(storage) for each in self._tenants) + size > of_server:
            raise JetStreamError(errorcodes.INSUFFICIENT_RESOURCES)

    def check_restored(self, storage: str, size: int) -> None:
        """Refuse `size` more bytes of a stream that is being restored, if there is no room."""
        try:
            self.check_room(storage, size)
        except JetStreamError:
            raise JetStreamError(_out_of(storage)) from None

    def _account_limit(self, storage: str) -> int:
        """Return the bytes that the account may store; -1 is no limit."""
        limits = self.limits
        return limits.max_memory if storage == "memory" else limits.max_store

    def _server_limit(self, storage: str) -> int | None:
        """Return the bytes that all accounts may store together."""
        config = self._config
        return config.max_mem if storage == "memory" else config.max_file


def _out_of(storage: str) -> ApiError:
    if storage == "memory":
        return errorcodes.MEMORY_RESOURCES_EXCEEDED
    return errorcodes.STORAGE_RESOURCES_EXCEEDED
