"""The destination of a consumer's messages: waiting pull requests, or a deliver subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.hot.wire import Op
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.consumers.encoding import Deliveries


class ConsumerOutlet(Protocol):
    """Pull or push: takes the messages that clients ask for, and knows those clients."""

    last_active_ns: int
    """When a client last used the consumer."""

    @property
    def deadline_ns(self) -> int:
        """When to call `look` next; 0 is never."""

    @property
    def is_bound(self) -> bool:
        """Whether a subscriber is bound to the consumer."""

    @property
    def wants_look(self) -> bool:
        """Whether `idle` has something to do although there is no room for messages."""

    def __len__(self) -> int:
        """Return the number of waiting requests."""

    # Life.

    def bind(self) -> None:
        """Start watching for subscribers."""

    def unbind(self) -> None:
        """Stop watching for subscribers."""

    def set_config(self, config: ConsumerConfig) -> None:
        """Deliver as this configuration says from now on."""

    def end(self, status: str, *, with_pending: bool = False) -> None:
        """End every waiting request with a status."""

    def is_abandoned(self, now_ns: int, acks_due_ns: int) -> bool:
        """
        Tell whether nobody uses the consumer any more; it was idle for long enough.

        `acks_due_ns` is when the last of its open messages is due again.
        """

    # Clients.

    def request(self, inbox: bytes, payload: bytes, *, available: int, now_ns: int) -> bool:
        """Take a pull request or refuse it; tell whether messages may flow now."""

    def take_flow_answer(self, subject: bytes) -> bool:
        """Take the answer to a flow control request; tell whether it is the awaited one."""

    def unpin(self, group: str) -> None:
        """Let another client of a priority group be pinned."""

    def groups(self) -> list[dict[str, Any]]:
        """Return the priority groups for ConsumerInfo; empty without any."""

    # Messages.

    def room(self) -> int:
        """Return how many messages may be sent now, at most one batch."""

    def send_new(self, deliveries: Deliveries, now_ns: int) -> int:
        """Send first deliveries; return how many were taken."""

    def send(self, operations: list[Op], now_ns: int) -> int:
        """Send messages; return how many were taken."""

    def idle(self, now_ns: int, *, is_at_end: bool) -> None:
        """Send heartbeats and statuses to clients while there are no messages for them."""

    def look(self, now_ns: int, *, is_at_end: bool) -> None:
        """Do the work that is due."""
