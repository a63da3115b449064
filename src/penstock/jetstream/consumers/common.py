"""
State and helpers that the parts of one consumer share.

    backlog   messages of the stream that are still to come, in order
    ledger    deliveries, and which of them are settled
    outlet    where messages go: waiting pull requests, or a deliver subject
    record    the changes that are written to disk
    events    the advisories and metrics
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream.consumers.consumerevents import ConsumerEvents
from penstock.jetstream.consumers.consumerfiles import ConsumerFiles, ConsumerRecord
from penstock.jetstream.store.columns import Matcher
from penstock.protocol import subjects, wellknown

if TYPE_CHECKING:
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.consumers.backlog import ConsumerBacklog
    from penstock.jetstream.consumers.consumerrecords import ConsumerState
    from penstock.jetstream.consumers.ledger import Ledger
    from penstock.jetstream.consumers.outlet import ConsumerOutlet
    from penstock.jetstream.consumers.source import StreamSource

FILTERS_COMPARED = 8
"""Up to this number of filters are compared with a subject one by one."""
TOKEN_LENGTH = 4
"""The length of the token that tells one flow control request from another."""


class Common:
    """The configuration of a consumer, its place in the stream, and its outlet."""

    outlet: ConsumerOutlet

    def __init__(
        self,
        stream: StreamSource,
        config: ConsumerConfig,
        *,
        backlog: ConsumerBacklog,
        ledger: Ledger,
        files: ConsumerFiles | None,
    ) -> None:
        self.name = config.name
        self.stream = stream
        self.context = stream.context
        self.backlog = backlog
        self.ledger = ledger
        self.files = files
        self.record = ConsumerRecord(files, self.name)
        self.events = ConsumerEvents(self.context, stream.name, self.name)
        self.delivered_ns = self.acked_ns = 0
        """When a message was last delivered, and acked; 0 is never."""
        self.wants_delivery = False
        """Whether something happened that may let messages flow."""
        self.may_have_lost = False
        """Whether messages that wait for an ack may have been removed from the stream."""
        names = f"{stream.name}.{self.name}"
        self.ack_prefix = f"{wellknown.ACK}{names}.".encode()
        self._flow_control_prefix = f"{wellknown.FLOW_CONTROL}{names}."
        self.set_config(config)

    def set_config(self, config: ConsumerConfig) -> None:
        """Work out once how the options affect each message."""
        self.config = config
        self.filters = config.filters
        is_long = len(self.filters) > FILTERS_COMPARED
        self._matcher = Matcher(self.filters) if is_long else None
        self.acks_each = config.ack_policy == "explicit"
        self.sample_percent = config.sample_percent
        self.acks_in_bulk = self.acks_each and not self.sample_percent
        """Whether plain acks may be settled together: nobody needs details of them."""
        until_ns = config.pause_until_ns
        self.paused_until_ns = until_ns if until_ns > self.context.clock_ns() else 0
        """The end of the pause; 0 if it is not paused."""
        self.expects_acks = config.ack_policy != "none"
        self.acks_by_flow = config.ack_policy == "flow_control"
        """Whether acks come only with the answers to flow control requests."""
        self.pending_max = max(config.max_ack_pending, 0)
        """The number of messages that may wait for an ack; 0 is any number."""
        self.ledger.backoff_ns = config.ack_waits_ns

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of messages waits for an ack."""
        return 0 < self.pending_max <= len(self.ledger.pending)

    @property
    def is_at_end(self) -> bool:
        """Whether there is nothing to deliver, now or when acks come."""
        return self.backlog.is_at_end and not self.ledger.due and not self.is_full

    @property
    def is_stuck(self) -> bool:
        """Whether there is nothing to deliver now."""
        return not self.ledger.due and (self.backlog.is_at_end or self.is_full)

    def wants(self, subject: bytes) -> bool:
        """Tell whether its filters let messages of this subject through."""
        filters = self.filters
        if self.config.direct:
            return False
        if self._matcher is not None:
            return self._matcher[subject]
        return not filters or any(subjects.matches(each, subject) for each in filters)

    def start_after(self, pattern: bytes, left: int) -> int:
        """
        Return where to go on after a purge; 0 is anywhere.

        Filters that let through only what was purged leave nothing before `left`.
        """
        first_sequence = self.stream.store.first_sequence
        if not self.filters:
            return first_sequence
        if self.is_within(pattern):
            return max(first_sequence, left)
        is_concerned = any(
            subjects.contains(each, pattern) or subjects.contains(pattern, each)
            for each in self.filters
        )
        return first_sequence if is_concerned else 0

    def is_within(self, pattern: bytes) -> bool:
        """Tell whether its filters let through only what matches a pattern."""
        filters = self.filters
        return bool(filters) and all(subjects.contains(pattern, each) for each in filters)

    def needs(self, sequence: int, subject: bytes) -> bool:
        """Tell whether it wants this message and has not settled it yet."""
        is_open = (
            sequence >= self.backlog.next_sequence
            or sequence in self.ledger.pending
            or sequence in self.ledger.redelivered
        )
        return is_open and self.wants(subject)

    def state(self) -> ConsumerState:
        """Return the consumer's position, its pending messages and its redeliveries."""
        return self.ledger.state(self.backlog.next_sequence)

    def heartbeat(self) -> bytes:
        """Return the heartbeat header, with the consumer's position."""
        delivered = self.ledger.next_consumer_sequence - 1, self.backlog.next_sequence - 1
        lines = b"Nats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n" % delivered
        return b"NATS/1.0 100 Idle Heartbeat\r\n" + lines

    def flow_control_subject(self) -> bytes:
        """Return a subject for the answer to a flow control request."""
        return (self._flow_control_prefix + self.context.new_id(TOKEN_LENGTH)).encode()
