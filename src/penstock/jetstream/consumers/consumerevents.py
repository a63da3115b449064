"""The events of one consumer: advisories, and the metric of its acks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.protocol.rfc3339 import format_time

if TYPE_CHECKING:
    from penstock.jetstream.consumers.acks import AckedDelivery
    from penstock.jetstream.context import Context


class ConsumerEvents:
    """Publishes the events of one consumer."""

    def __init__(self, context: Context, stream: str, consumer: str) -> None:
        self._advisories = context.advisories
        self._account = context.account_name
        self._names = {"stream": stream, "consumer": consumer}
        self._suffix = f"{stream}.{consumer}"

    def naked(self, delivery: AckedDelivery) -> None:
        """Announce that a client refused a message for now."""
        self._advise("MSG_NAKED", "nak", **_describe(delivery))

    def terminated(self, delivery: AckedDelivery, reason: str) -> None:
        """Announce that a message is not delivered any more, and why."""
        why = {"reason": reason} if reason else {}
        self._advise("MSG_TERMINATED", "terminated", **_describe(delivery), **why)

    def given_up(self, sequence: int, deliveries: int) -> None:
        """Announce that a message reached its maximum number of deliveries."""
        self._advise("MAX_DELIVERIES", "max_deliver", stream_seq=sequence, deliveries=deliveries)

    def paused(self, is_paused: bool, until_ns: int) -> None:
        """Announce the end of the pause, or that it is over."""
        until = format_time(until_ns)
        self._advise("PAUSE", "consumer_pause", paused=is_paused, pause_until=until)

    def pinned(self, event: str, **fields: str) -> None:
        """Announce that a client was pinned (`PINNED`), or no longer is (`UNPINNED`)."""
        self._advisories.send(
            f"CONSUMER.{event}.{self._suffix}",
            f"consumer_group_{event.lower()}",
            account=self._account,
            **self._names,
            **fields,
        )

    def acked(self, delivery: AckedDelivery, delay_ns: int) -> None:
        """Publish how long an ack took."""
        figures = _describe(delivery)
        deliveries = figures.pop("deliveries")
        fields = self._names | figures | {"ack_time": delay_ns, "deliveries": deliveries}
        self._advisories.metric(f"CONSUMER.ACK.{self._suffix}", "consumer_ack", **fields)

    def _advise(self, event: str, kind: str, **fields: Any) -> None:
        subject = f"CONSUMER.{event}.{self._suffix}"
        self._advisories.send(subject, kind, **self._names, **fields)


def _describe(delivery: AckedDelivery) -> dict[str, int]:
    return {
        "consumer_seq": delivery.consumer_sequence,
        "stream_seq": delivery.sequence,
        "deliveries": delivery.deliveries,
    }
