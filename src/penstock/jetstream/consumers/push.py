"""
Push delivery: messages go to the deliver subject as long as somebody listens there.

Heartbeats tell a silent subscriber that there is nothing to deliver. With flow control a client
confirms its position now and then: the server sends a request between the messages, and pauses when
the window is full before the client, which reads in order, has answered. The window grows with each
answer. Without flow control, the subscriber's outbox is the brake: a full outbox gets no more
messages, so a slow subscriber costs time and not memory.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

from penstock import hot
from penstock.hot.wire import CRLF, REPLY, SIZE, Op
from penstock.jetstream.consumers.encoding import Deliveries
from penstock.jetstream.consumers.pull import BATCH_MAX
from penstock.jetstream.consumers.pullrequest import encode_status
from penstock.jetstream.consumers.ratelimit import DeliveryRate

if TYPE_CHECKING:
    from penstock.core.account import Account
    from penstock.jetstream.config.consumer import ConsumerConfig

WINDOW_BYTES_MAX = 32 * 1024 * 1024
WINDOW_BYTES_FIRST = WINDOW_BYTES_MAX // 16
BRAKE_NS = 10_000_000
"""How long to leave a subscriber with a full outbox alone before the next check."""
FLOW_CONTROL_REQUEST = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


class FlowControl:
    """The window of one consumer: how much may be on its way to the client."""

    def __init__(self) -> None:
        self.request = b""
        """The subject of the awaited answer, or empty."""
        self._window_bytes = WINDOW_BYTES_FIRST
        self._sent_bytes = 0
        self._asked_bytes = 0

    @property
    def is_stalled(self) -> bool:
        """Whether sending has to pause until the client answers a request."""
        return bool(self.request) and self._sent_bytes > self._window_bytes

    def sent(self, size_bytes: int) -> bool:
        """Count sent bytes; tell whether to send the client a flow control request."""
        self._sent_bytes += size_bytes
        return not self.request and self._sent_bytes > self._window_bytes // 2

    def ask(self, subject: bytes) -> None:
        """Note that the client was sent a request."""
        self.request = subject
        self._asked_bytes = self._sent_bytes

    def answered(self, subject: bytes) -> bool:
        """Take an answer; tell whether it is the awaited one."""
        if not subject or subject != self.request:
            return False
        self.request = b""
        self._sent_bytes -= self._asked_bytes
        self._window_bytes = min(2 * self._window_bytes, WINDOW_BYTES_MAX)
        return True


class PushDelivery:
    """Sends the messages of one consumer to its deliver subject."""

    def __init__(
        self,
        account: Account,
        config: ConsumerConfig,
        heartbeat: Callable[[], bytes],
        flow_control_subject: Callable[[], bytes],
        *,
        clock_ns: Callable[[], int],
        wake: Callable[[], None],
        burst_bytes: int = 0,
        pending: Callable[[], int] | None = None,
    ) -> None:
        self._account = account
        self._heartbeat = heartbeat
        self._flow_control_subject = flow_control_subject
        self._clock_ns = clock_ns
        self._wake = wake
        """Called when a subscriber comes or goes."""
        self.flow_control = FlowControl() if config.flow_control else None
        self._pending = pending
        """Returns how much is not acked, if acks come with the answers to flow control requests."""
        self.deadline_ns = 0
        """When to check for a due heartbeat or a message that may go; 0 is never."""
        self._heartbeat_at_ns = self._brake_at_ns = 0
        self._burst_bytes = burst_bytes
        self._rate_limit: DeliveryRate | None = None
        self.last_active_ns = 0
        self.is_bound = False
        self.set_config(config)

    def set_config(self, config: ConsumerConfig) -> None:
        """Deliver as this configuration says from now on."""
        self.config = config
        self._subject = config.deliver_subject.encode()
        self._group = config.deliver_group.encode()
        limit = config.rate_limit_bps
        if not limit:
            self._rate_limit = None
        elif self._rate_limit is None or self._rate_limit.bits_per_second != limit:
            self._rate_limit = DeliveryRate(limit, self._burst_bytes)

    def __len__(self) -> int:
        """Return 0: only pull consumers have waiting requests."""
        return 0

    def bind(self) -> None:
        """Start watching for subscribers."""
        self._account.routes.watch(self._subject, self._on_interest)
        self._look_for_interest(self._clock_ns())

    def unbind(self) -> None:
        """Stop watching for subscribers."""
        self._account.routes.unwatch(self._subject, self._on_interest)

    def _on_interest(self) -> None:
        """Check who subscribed to the deliver subject, or left it."""
        if self._look_for_interest(self._clock_ns()):
            # Later: this is called in the middle of a subscription.
            self._wake()

    def request(self, inbox: bytes, payload: bytes, *, available: int, now_ns: int) -> bool:
        """Refuse a pull request."""
        status = encode_status("409 Consumer is push based")
        self._account.send(inbox, b"", header=status)
        return False

    def take_flow_answer(self, subject: bytes) -> bool:
        """Take the answer to a flow control request; tell whether it is the awaited one."""
        return self.flow_control is not None and self.flow_control.answered(subject)

    def unpin(self, group: str) -> None:
        """Never needed: only pull consumers have priority groups."""
        raise AssertionError("a push consumer has no priority groups")

    def groups(self) -> list[dict[str, Any]]:
        """Return no priority groups."""
        return []

    def is_abandoned(self, now_ns: int, acks_due_ns: int) -> bool:
        """Return True: nobody listens, and nobody else can ask for unacked messages."""
        return True

    def _look_for_interest(self, now_ns: int) -> bool:
        """Check whether somebody listens; tell whether that has changed."""
        was_bound, self.is_bound = self.is_bound, self._has_interest()
        if self.is_bound != was_bound:
            self.last_active_ns = now_ns
            if self.flow_control is not None:
                # This subscriber will never answer for messages sent to the previous one.
                self.flow_control = FlowControl()
            heartbeat_ns = self.config.idle_heartbeat
            self._heartbeat_at_ns = now_ns + heartbeat_ns if self.is_bound and heartbeat_ns else 0
            self._watch()
        return self.is_bound != was_bound

    def _has_interest(self) -> bool:
        """
        Tell whether somebody listens on exactly this subject, in the group if there is one.

        As in nats-server, a wildcard subscriber gets the messages too, but does not keep the
        consumer active.
        """
        routes = self._account.routes
        route = routes.cache.get(self._subject) or routes.find(self._subject)
        return any(
            each.subject == self._subject and each.queue == self._group
            for each in chain(route.receivers(), route.handlers)
            if each.handler is None or each.deliver is not None
        )

    def room(self) -> int:
        """Return how many messages may be sent now."""
        if not self.is_bound or (self.flow_control is not None and self.flow_control.is_stalled):
            return 0
        if self._rate_limit is not None and self._rate_limit.due_ns:
            return 0
        return 0 if self._is_braked else BATCH_MAX

    @property
    def wants_look(self) -> bool:
        """Whether a subscriber's outbox is so full that it is left alone for a while."""
        return self._is_braked

    @property
    def _is_braked(self) -> bool:
        return self.is_bound and self._account.is_congested(self._subject)

    def send_new(self, deliveries: Deliveries, now_ns: int) -> int:
        """Send first deliveries; return how many were sent."""
        return self.send(hot.first_deliveries(*deliveries), now_ns)

    def send(self, operations: list[Op], now_ns: int) -> int:
        """Send messages; return how many were sent."""
        if self._rate_limit is not None:
            operations = self._rate_limit.admit(operations, now_ns)
            self._watch()
            if not operations:
                return 0
        self._account.deliver_as(self._subject, operations)
        if self.config.idle_heartbeat:
            self._heartbeat_at_ns = now_ns + self.config.idle_heartbeat
            self._watch()
        if self.flow_control is not None:
            self._control_flow(self.flow_control, operations)
        return len(operations)

    def _control_flow(self, flow_control: FlowControl, operations: list[Op]) -> None:
        target = len(self._subject)
        size_bytes = sum([target + len(each[REPLY]) + each[SIZE] for each in operations])
        is_full = self._pending is not None and self._is_full(self._pending() + len(operations))
        if flow_control.sent(size_bytes) or (is_full and not flow_control.request):
            self._ask(flow_control)

    def _is_full(self, pending: int) -> bool:
        return pending >= self.config.max_ack_pending

    def _ask(self, flow_control: FlowControl) -> None:
        subject = self._flow_control_subject()
        flow_control.ask(subject)
        self._send(FLOW_CONTROL_REQUEST, reply=subject)

    def idle(self, now_ns: int, *, is_at_end: bool) -> None:
        """Send a heartbeat if nothing else was sent for long enough."""
        self._brake_at_ns = now_ns + BRAKE_NS if self._is_braked else 0
        self._watch()
        if not 0 < self._heartbeat_at_ns <= now_ns:
            return
        header = self._heartbeat()
        if self.flow_control is not None and self.flow_control.request:
            stalled = b"Nats-Consumer-Stalled: %b\r\n\r\n" % self.flow_control.request
            header = header.removesuffix(CRLF) + stalled
        self._send(header)
        if self._group and self.flow_control is not None and self.flow_control.is_stalled:
            # The group member that got the request may be gone, and not every client reacts to a
            # heartbeat.
            self._send(FLOW_CONTROL_REQUEST, reply=self.flow_control.request)
        if self._pending is not None and self.flow_control is not None:
            if self._pending() and not self.flow_control.request:
                self._ask(self.flow_control)
        self._heartbeat_at_ns = now_ns + self.config.idle_heartbeat
        self._watch()

    def _watch(self) -> None:
        release_ns = self._rate_limit.due_ns if self._rate_limit is not None else 0
        deadlines = (self._heartbeat_at_ns, self._brake_at_ns, release_ns)
        self.deadline_ns = min([each for each in deadlines if each], default=0)

    def look(self, now_ns: int, *, is_at_end: bool) -> None:
        """Do the work that is due."""
        if self._rate_limit is not None:
            self._rate_limit.release(now_ns)
            self._watch()
        self.idle(now_ns, is_at_end=is_at_end)

    def end(self, status: str, *, with_pending: bool = False) -> None:
        """Do nothing: only pull consumers have waiting requests."""

    def _send(self, header: bytes, *, reply: bytes = b"") -> None:
        self._account.send(self._subject, b"", reply=reply, header=header)
