"""
One consumer: its life, and the way from a request, an ack or a deadline to its parts.

    common       shared by the parts: configuration, backlog, ledger, outlet
    dispatch     delivers messages
    settlement   takes acks, and decides on redeliveries
    deadlines    one timer for everything the consumer does by itself

Everything that may let messages flow (a request, an ack, a new message, a deadline, a subscriber)
ends in `deliver`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.core.runs import payloads
from penstock.jetstream.config.stream import is_api_level_known
from penstock.jetstream.consumers import consumerinfo
from penstock.jetstream.consumers.common import Common
from penstock.jetstream.consumers.deadlines import Deadlines
from penstock.jetstream.consumers.dispatch import Dispatch
from penstock.jetstream.consumers.ledger import Ledger
from penstock.jetstream.consumers.outlets import new_outlet
from penstock.jetstream.consumers.pullrequest import encode_status
from penstock.jetstream.consumers.settlement import Settler

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.hot.wire import Op
    from penstock.jetstream.config.consumer import ConsumerConfig
    from penstock.jetstream.consumers.backlog import ConsumerBacklog
    from penstock.jetstream.consumers.consumerfiles import ConsumerFiles
    from penstock.jetstream.consumers.source import StreamSource
    from penstock.jetstream.store.values import Filters

COUNTING_NS = 5_000_000
"""How long to count in one turn; the last stretch may end later."""


class Consumer:
    """A consumer that is being served."""

    def __init__(
        self,
        stream: StreamSource,
        config: ConsumerConfig,
        *,
        created_ns: int,
        backlog: ConsumerBacklog,
        ledger: Ledger,
        files: ConsumerFiles | None = None,
        resume_sequence: int = 0,
    ) -> None:
        self.name = config.name
        self.created_ns = created_ns
        self.resume_sequence = resume_sequence
        """Where it continues after the last message of each subject, if it begins with those."""
        self.is_closed = False
        common = Common(stream, config, backlog=backlog, ledger=ledger, files=files)
        self._common = common
        self._deadlines = Deadlines(common, self._do_what_is_due)
        self._settlement = Settler(common, self, self._deadlines, self._on_request)
        self._dispatch = Dispatch(common, self._settlement, self._deadlines)
        self.deliver = self._dispatch.deliver
        self.outlet = common.outlet = new_outlet(common, self._deadlines.soon)
        self.outlet.last_active_ns = common.context.clock_ns()
        self.on_purged = self._settlement.on_purged
        self.go_back = self._settlement.go_back
        self.drop_settled = self._settlement.drop_settled
        self.wants, self.needs, self.state = common.wants, common.needs, common.state
        self.is_within = common.is_within

    # Properties.

    @property
    def stream(self) -> StreamSource:
        """The stream it reads."""
        return self._common.stream

    @property
    def config(self) -> ConsumerConfig:
        """Its configuration."""
        return self._common.config

    @property
    def filters(self) -> Filters:
        """The subjects it delivers; empty for all."""
        return self._common.filters

    @property
    def files(self) -> ConsumerFiles | None:
        """Its files; None if it is in memory only."""
        return self._common.files

    @property
    def ledger(self) -> Ledger:
        """Its deliveries, and which of them are settled."""
        return self._common.ledger

    @property
    def backlog(self) -> ConsumerBacklog:
        """The messages of the stream that are still to come."""
        return self._common.backlog

    @property
    def hears_acks(self) -> bool:
        """Whether acks on `$JS.ACK` are for it."""
        return self._common.expects_acks and not self._common.acks_by_flow

    @property
    def paused_until_ns(self) -> int:
        """The end of the pause; 0 if it is not paused."""
        return self._common.paused_until_ns

    def info(self) -> dict[str, Any]:
        """Return ConsumerInfo."""
        common = self._common
        self._settlement.forget_lost()
        now_ns = common.context.clock_ns()
        common.outlet.look(now_ns, is_at_end=False)
        self._deadlines.watch()
        return consumerinfo.describe(common, created_ns=self.created_ns, now_ns=now_ns)

    # Life.

    def open(self) -> None:
        """Start delivering."""
        self.bind()
        self.deliver()

    def bind(self) -> None:
        """Start watching for subscribers."""
        self.outlet.bind()

    def close(self) -> None:
        """Let go of timers and interest; nothing is deleted."""
        if self.is_closed:
            return
        self.is_closed = True
        self._deadlines.close()
        self.outlet.unbind()
        self.outlet.end("409 Server Shutdown", with_pending=True)

    def delete(self, done: Callable[[], None] = lambda: None) -> None:
        """End all requests; call `done` once the consumer cannot come back."""
        stream, files = self._common.stream, self.files
        self.outlet.end("409 Consumer Deleted")
        self.close()
        stream.remove_consumer(self.name)
        if not stream.is_dropped:
            stream.consumers_changed()
        self._common.context.advisories.consumer_action(stream.name, self.name, "delete")
        if files is not None and not stream.is_dropped:
            files.remove(self.name, done)
        else:
            done()

    def update(self, config: ConsumerConfig) -> None:
        """Apply a checked configuration."""
        common, old = self._common, self.config
        now_ns = common.context.clock_ns()
        self.outlet.unbind()
        common.set_config(config)
        self.outlet.set_config(config)
        self.outlet.last_active_ns = now_ns
        if config.pause_until_ns != old.pause_until_ns:
            self.advise_pause()
        if config.filters != old.filters:
            common.backlog.set_filters(config.filters)
            common.stream.consumers_changed()
        ledger = common.ledger
        if config.deliver_subject != old.deliver_subject:
            self._settlement.retry([each for each in ledger.pending if each not in ledger.due])
        if (config.ack_wait, config.backoff) != (old.ack_wait, old.backoff):
            for sequence in ledger.pending:
                ledger.watch(now_ns + ledger.wait_ns(sequence))
        self.open()

    def restart(self, sequence: int) -> None:
        """Begin again at a sequence, as if nothing had been delivered yet."""
        assert sequence > 0, "sequences begin at 1"
        common = self._common
        common.ledger = Ledger(sequence)
        common.ledger.backoff_ns = common.config.ack_waits_ns
        common.backlog.restart(sequence, self.resume_sequence)
        common.delivered_ns = common.acked_ns = 0
        common.record.put(common.state())
        common.stream.consumers_changed()

    def unpin(self, group: str) -> None:
        """Let another client of a priority group be pinned."""
        self.outlet.unpin(group)
        self.deliver()

    def advise_pause(self) -> None:
        """Announce the end of the pause, or that it is over."""
        self._common.events.paused(self.paused_until_ns > 0, self.config.pause_until_ns)

    # Clients and the stream.

    def on_messages(self) -> None:
        """Deliver the matching ones of new messages: `stream.visible_sequence` has moved up."""
        if self.outlet.room() or self.outlet.wants_look:
            self.deliver()

    def on_next(self, publish: Op, publisher: Session | None) -> None:
        """Take a run of pull requests; the reply subject is the inbox."""
        _, _, inbox, header_bytes, _, _ = publish
        for each in payloads(publish):
            if is_api_level_known(each[:header_bytes]):
                self._on_request(inbox, each[header_bytes:-2])
            elif inbox:
                header = encode_status("412 Required Api Level")
                self._common.context.account.send(inbox, b"", header=header)
        if not self._common.wants_delivery:
            return
        if self.config.priority_policy == "prioritized":
            # Requests that follow closely may be served before it.
            self._deadlines.soon()
        else:
            self.deliver()

    def _on_request(self, inbox: bytes, payload: bytes) -> None:
        """Queue a request until there are messages for it."""
        if not inbox:
            return
        common = self._common
        available = common.backlog.count_max + len(common.ledger.due)
        now_ns = common.context.clock_ns()
        if self.outlet.request(inbox, payload, available=available, now_ns=now_ns):
            common.wants_delivery = True

    def on_acks(self, publishes: list[Op], skip: int) -> None:
        """
        Take acks, in the order in which they came.

        After `skip` bytes, their subjects are `<delivered>.<stream seq>.<consumer
        seq>.<time>.<pending>`.
        """
        self._settlement.take(publishes, skip)
        if self._common.wants_delivery:
            self.deliver()

    def on_flow_control(self, publish: Op) -> None:
        """Take a client's answer to a flow control request."""
        _, subject, *_ = publish
        if self.outlet.take_flow_answer(subject):
            if self._common.acks_by_flow:
                self._settlement.take_flow(publish)
            self.deliver()

    # Time.

    def _catch_up(self, end_ns: int) -> None:
        """Count what deliveries wait for, as long as this turn lasts."""
        backlog, clock_ns = self._common.backlog, self._common.context.clock_ns
        while backlog.is_behind and not backlog.count_on() and clock_ns() < end_ns:
            pass

    def _do_what_is_due(self, now_ns: int) -> None:
        """Redeliver, send heartbeats, end expired requests; delete an abandoned consumer."""
        common = self._common
        if self._deadlines.is_inactive(now_ns):
            self.delete()
            return
        if 0 < common.paused_until_ns <= now_ns:
            common.paused_until_ns = 0
            self.advise_pause()
        self._settlement.forget_lost()
        self._catch_up(now_ns + COUNTING_NS)
        if 0 < common.ledger.deadline_ns <= now_ns:
            self._settlement.retry(common.ledger.overdue(now_ns))
        if 0 < self.outlet.deadline_ns <= now_ns:
            # At a deadline, what does not want to wait ends also where acks have to come first.
            self.outlet.look(now_ns, is_at_end=common.is_stuck)
        self.deliver()
