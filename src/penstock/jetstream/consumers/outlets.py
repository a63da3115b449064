"""Where the messages of a consumer go: to waiting pull requests, or to a deliver subject."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.jetstream.consumers.priority import PriorityGroup, Standing
from penstock.jetstream.consumers.pull import PullRequests
from penstock.jetstream.consumers.push import PushDelivery

if TYPE_CHECKING:
    from penstock.jetstream.consumers.consumer import Consumer

BURST_BYTES = 1024 * 1024
"""What a rate limit lets through at once if the stream does not say how large a message may be."""

Outlet = PullRequests | PushDelivery


def new_outlet(consumer: Consumer) -> Outlet:
    """Return what a consumer delivers through."""
    account, config = consumer.engine.account, consumer.config
    if not config.is_push:
        return PullRequests(account, config, consumer.heartbeat, _new_group(consumer))
    size_max = consumer.stream.config.max_msg_size
    return PushDelivery(
        account,
        config,
        consumer.heartbeat,
        consumer.flow_control_subject,
        burst_bytes=size_max if size_max > 0 else BURST_BYTES,
        pending=_count_pending(consumer) if consumer.acks_by_flow else None,
    )


def _count_pending(consumer: Consumer) -> Callable[[], int]:
    return lambda: len(consumer.ledger.pending)


def update_outlet(consumer: Consumer) -> None:
    """Have a consumer deliver as its configuration says by now."""
    outlet, config = consumer.outlet, consumer.config
    outlet.set_config(config)
    if isinstance(outlet, PullRequests):
        group = outlet.group
        if group is not None and group.config.priority_policy == config.priority_policy:
            group.config = config
        else:
            outlet.group = _new_group(consumer)


def _new_group(consumer: Consumer) -> PriorityGroup | None:
    if consumer.config.priority_policy == "none":
        return None

    def standing() -> Standing:
        ledger = consumer.ledger
        return Standing(consumer.backlog.count(), len(ledger.pending), 0 if ledger.due else 1)

    return PriorityGroup(
        consumer.config,
        standing=standing,
        new_id=consumer.engine.new_id,
        announce=consumer.events.pinned,
    )
