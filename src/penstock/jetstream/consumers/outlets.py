"""Makes the outlet of a consumer: pull or push, by its configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.jetstream.consumers.priority import PriorityGroup, Standing
from penstock.jetstream.consumers.pull import WaitingPulls
from penstock.jetstream.consumers.push import PushDelivery

if TYPE_CHECKING:
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.consumers.common import Common
    from penstock.jetstream.consumers.outlet import ConsumerOutlet

BURST_BYTES = 1024 * 1024
"""The burst of a rate limit if the stream does not limit the size of a message."""


def new_outlet(common: Common, wake: Callable[[], None]) -> ConsumerOutlet:
    """Return the outlet of a consumer; it calls `wake` when a subscriber comes or goes."""
    account, config = common.context.account, common.config
    if not config.is_push:
        return WaitingPulls(account, config, common.heartbeat, _group_maker(common))
    size_max = common.stream.config.max_msg_size
    return PushDelivery(
        account,
        config,
        common.heartbeat,
        common.flow_control_subject,
        clock_ns=common.context.clock_ns,
        wake=wake,
        burst_bytes=size_max if size_max > 0 else BURST_BYTES,
        pending=(lambda: len(common.ledger.pending)) if common.acks_by_flow else None,
    )


def _group_maker(common: Common) -> Callable[[ConsumerConfig], PriorityGroup]:
    def standing() -> Standing:
        ledger = common.ledger
        return Standing(common.backlog.count(), len(ledger.pending), 0 if ledger.due else 1)

    return lambda config: PriorityGroup(
        config,
        standing=standing,
        new_id=common.context.new_id,
        announce=common.events.pinned,
    )
