"""ConsumerInfo: the description of a consumer for clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.protocol.rfc3339 import format_time

if TYPE_CHECKING:
    from penstock.jetstream.consumers.common import Common


def describe(consumer: Common, *, created_ns: int, now_ns: int) -> dict[str, Any]:
    """Return a consumer's configuration and position."""
    ledger, config, outlet = consumer.ledger, consumer.config, consumer.outlet
    delivered = (ledger.next_consumer_sequence - 1, ledger.delivered_sequence)
    floor = ledger.floor(consumer.backlog.next_sequence)
    info: dict[str, Any] = {
        "stream_name": consumer.stream.name,
        "name": consumer.name,
        "created": format_time(created_ns),
        "config": config.to_answer(),
        "delivered": _sequences(delivered, consumer.delivered_ns),
        "ack_floor": _sequences(floor, consumer.acked_ns),
        "num_ack_pending": len(ledger.pending),
        "num_redelivered": len(ledger.redelivered) if config.max_deliver != 1 else 0,
        "num_waiting": len(outlet),
        "num_pending": max(consumer.backlog.count(), 0),
    }
    if outlet.is_bound:
        info["push_bound"] = True
    if consumer.paused_until_ns > now_ns:
        info |= {"paused": True, "pause_remaining": consumer.paused_until_ns - now_ns}
    info["ts"] = format_time(now_ns)
    groups = outlet.groups()
    if groups:
        info["priority_groups"] = groups
    return info


def _sequences(pair: tuple[int, int], time_ns: int) -> dict[str, Any]:
    document: dict[str, Any] = {"consumer_seq": pair[0], "stream_seq": pair[1]}
    return document | {"last_active": format_time(time_ns)} if time_ns else document
