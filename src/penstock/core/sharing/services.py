"""
Services of other accounts: requests go there, and their answers come back.

A request is published in the exporting account, under the service's name there and with a
reply subject made for it. Answers to that subject go into the importing account, and can
reach nothing else in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.config.accounts import Export
from penstock.config.sharing import Relation
from penstock.core.account import Account
from penstock.core.reports import messagetrace
from penstock.core.reports.clientinfo import client_account, client_info
from penstock.core.routing.route import ACK_PREFIX
from penstock.core.runs import new_message, single_messages
from penstock.core.sharing import latency
from penstock.core.sharing.latency import Measured
from penstock.hot.wire import CRLF, DATA, PUB, SIZE, SUBJECT, Op
from penstock.protocol import headers, times

if TYPE_CHECKING:
    from penstock.core.reports.messagetrace import MessageTrace
    from penstock.core.routing.route import Subscription
    from penstock.core.session import Session

REPLY_PREFIX = "_R_."
REQUEST_INFO = b"Nats-Request-Info"
_REQUEST_INFO = re.compile(rb"\r\n%b:[^\r\n]*" % REQUEST_INFO, re.IGNORECASE)
"""In any case of letters, because some clients ignore the case."""
SWEEP_MIN = 1024
"""The number of pending answers from which expired ones are swept."""


class PendingAnswer(NamedTuple):
    """A pending answer."""

    asker: Replies
    """The reply subjects of the asking account."""
    reply: bytes
    export: Export
    until_ns: int
    measured: Measured | None = None
    asked: bytes = b""
    """The subject of the service in the asking account."""


class Replies:
    """The reply subjects made in one account for requests from other accounts."""

    def __init__(
        self,
        account: Account,
        new_id: Callable[[], str],
        clock_ns: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.account = account
        self._new_id = new_id
        self._clock_ns = clock_ns
        self._call_later = call_later
        self._prefix = f"{REPLY_PREFIX}{new_id()}.".encode()
        self._waiting: dict[bytes, PendingAnswer] = {}
        self._sweep_at = SWEEP_MIN
        self._listening: Subscription | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def open(
        self,
        asker: Replies,
        reply: bytes,
        export: Export,
        measured: Measured | None = None,
        asked: bytes = b"",
    ) -> bytes:
        """Return a subject here that leads to a reply subject of another account."""
        if self._listening is None:
            self._listening = self.account.listen(
                self._prefix + b">",
                self._on_answers,
                deliver=self.deliver,
                traced=self._on_traced,
            )
        if len(self._waiting) >= self._sweep_at:
            self._sweep()
        subject = self.new_subject()
        until_ns = self._clock_ns() + int(export.response_s_max * times.SECOND_NS)
        self._waiting[subject] = PendingAnswer(asker, reply, export, until_ns, measured, asked)
        if measured is not None:
            self._call_later(export.response_s_max, lambda: self._give_up(subject, measured))
        return subject

    def new_subject(self) -> bytes:
        """Return a new subject that leads nowhere yet."""
        return self._prefix + self._new_id().encode()

    def tell_nobody(self, message: Op, publisher: Session | None) -> None:
        """Tell the asking client that there are no responders, unless others heard the request."""
        account, (_, subject, reply, *_) = self.account, message
        route = account.routes.cache.get(subject) or account.routes.find(subject)
        if route.sole_handler is not None and not self.nobody(reply, publisher):
            account.answer_no_responders([message], publisher)

    def nobody(self, reply: bytes, publisher: Session | None) -> bool:
        """Tell the asker behind a reply subject: no responders. Return whether there is one."""
        waiting = self._waiting.pop(reply, None)
        if waiting is None:
            return False
        waiting.asker.tell_nobody(new_message(waiting.asked, b"", reply=waiting.reply), publisher)
        return True

    def _give_up(self, subject: bytes, measured: Measured) -> None:
        if self._waiting.pop(subject, None) is not None:
            self.tell(measured, failure=latency.TIMEOUT)

    def tell(
        self,
        measured: Measured,
        *,
        failure: tuple[int, str] | None = None,
        responder: Session | None = None,
    ) -> None:
        """Publish the latency metric of a request in this account, which owns the service."""
        latency.tell(
            self.account,
            measured,
            self._new_id,
            self._clock_ns,
            failure=failure,
            responder=responder,
        )

    def _sweep(self) -> None:
        now_ns = self._clock_ns()
        self._waiting = {
            subject: waiting
            for subject, waiting in self._waiting.items()
            if waiting.until_ns > now_ns
        }
        self._sweep_at = max(SWEEP_MIN, 2 * len(self._waiting))

    def _on_answers(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            for message in single_messages(publish):
                self._on_answer(message, publisher)

    def _on_traced(self, message: Op, publisher: Session, trace: MessageTrace) -> None:
        """Pass on a traced answer. Its trace ends here, at the border of the asking account."""
        waiting = self._waiting.get(message[SUBJECT])
        if waiting is None:
            return
        trace.imported(waiting.asker.account.name, message[SUBJECT], waiting.reply)
        if not trace.is_only:
            self._on_answer(messagetrace.disabled(message), publisher)

    def deliver(self, subject: bytes, publishes: list[Op]) -> None:
        """Pass on a JetStream delivery. It keeps its own subject in the other account too."""
        waiting = self._take(subject, is_end=False)
        if waiting is None:
            return
        if waiting.export.response == "singleton":
            publishes = single_messages(publishes[0])[:1]
        waiting.asker.account.deliver_as(waiting.reply, publishes)

    def _take(self, subject: bytes, *, is_end: bool) -> PendingAnswer | None:
        """Return the pending answer unless it has expired; remove it with its last answer."""
        waiting, now_ns = self._waiting.get(subject), self._clock_ns()
        if waiting is None:
            return None
        is_over = waiting.until_ns <= now_ns
        if is_over or is_end or waiting.export.response == "singleton":
            del self._waiting[subject]
        else:
            until_ns = now_ns + int(waiting.export.response_s_max * times.SECOND_NS)
            self._waiting[subject] = waiting._replace(until_ns=until_ns)
        return None if is_over else waiting

    def _on_answer(self, message: Op, publisher: Session | None) -> None:
        _, subject, reply, *rest = message
        waiting = self._take(subject, is_end=message[SIZE] == 0)
        if waiting is None:
            return
        if reply and not reply.startswith(ACK_PREFIX):
            # The responder may ask back.
            reply = waiting.asker.open(self, reply, waiting.export)
        waiting.asker.account.respond([(PUB, waiting.reply, reply, *rest)], publisher)
        if waiting.measured is not None:
            self.tell(waiting.measured, responder=publisher)


class ServiceImport:
    """One imported service: takes requests in one account, and sends them in the other."""

    def __init__(
        self,
        importer: Replies,
        exporter: Replies,
        relation: Relation,
        *,
        export: Export,
        share: bool,
    ) -> None:
        self._importer = importer.account
        self._exporter = exporter.account
        self._asker = importer
        self._replies = exporter
        self._relation = relation
        self._export = export
        self._share = share
        self._listening: Subscription | None = None

    def open(self) -> None:
        """Start taking requests."""
        self._listening = self._importer.listen(
            self._relation.local, self._on_requests, deliver=self._deliver, traced=self._ask
        )

    def close(self) -> None:
        """Stop taking requests."""
        assert self._listening is not None, "open() comes first"
        self._importer.unlisten(self._listening)

    def _on_requests(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            for message in single_messages(publish):
                self._ask(message, publisher)

    def _deliver(self, subject: bytes, publishes: list[Op]) -> None:
        """Pass on a JetStream delivery. It keeps its own subject in the other account too."""
        exporter, target = self._exporter, self._relation.to_foreign(subject)
        if exporter.mappings is not None:
            mapped = exporter.mappings.apply([(PUB, target, b"", 0, 0, CRLF)])
            target = mapped[0][SUBJECT] if mapped else b""
        outer = exporter.asked
        for message in chain.from_iterable(map(single_messages, publishes)):
            exporter.asked = self._told(message)
            exporter.deliver_as(target, [exporter.asked])
        exporter.asked = outer

    def _told(self, message: Op) -> Op:
        """Return a copy of a message with its account in the header."""
        kind, subject, reply, header_bytes, _, data = message
        header = self._header(data[:header_bytes], None)
        content = header + data[header_bytes:]
        return (kind, subject, reply, len(header), len(content) - len(CRLF), content)

    def _header(self, header: bytes, publisher: Session | None) -> bytes:
        """Return the request header with the asking client, as far as the service may know it."""
        if publisher is None:
            return request_header(header, {"acc": self._importer.name})
        told = client_info(publisher) if self._share else client_account(publisher)
        return request_header(header, told)

    def _ask(
        self, message: Op, publisher: Session | None, trace: MessageTrace | None = None
    ) -> None:
        _, subject, reply, header_bytes, _, data = message
        foreign = self._relation.to_foreign(subject)
        header = self._header(data[:header_bytes], publisher)
        request: Op = (PUB, foreign, b"", len(header), 0, header + data[header_bytes:])
        exporter = self._exporter
        measured = self._measured(data[:header_bytes], publisher)
        if measured is not None and not reply:
            self._replies.tell(measured, failure=latency.BAD_REQUEST)
        mapped = [request] if exporter.mappings is None else exporter.mappings.apply([request])
        if trace is not None and mapped:
            trace.imported(exporter.name, subject, mapped[0][SUBJECT])
        may_go_on = trace is None or self._export.allow_trace or not trace.is_only
        if not may_go_on or not mapped or not exporter.has_interest(mapped[0][SUBJECT]):
            self._asker.tell_nobody(message, publisher)
            if measured is not None and reply:
                self._replies.tell(measured, failure=latency.UNAVAILABLE)
            return
        if reply and not reply.startswith(ACK_PREFIX):
            reply = self._replies.open(self._asker, reply, self._export, measured, subject)
        content = mapped[0][DATA]
        asked: Op = (PUB, mapped[0][SUBJECT], reply, len(header), len(content) - len(CRLF), content)
        if trace is not None:
            asked = messagetrace.with_dest(asked, self._trace_dest())
        outer, exporter.asked = exporter.asked, asked
        if trace is not None and publisher is not None and self._export.allow_trace:
            messagetrace.deliver(exporter, asked, publisher, trace)
        else:
            exporter.publish([asked], publisher)
        exporter.asked = outer

    def _trace_dest(self) -> bytes:
        """Return the trace destination for the service, which must not see the real one."""
        if not self._export.allow_trace:
            return messagetrace.DISABLED
        return self._replies.new_subject()

    def _measured(self, header: bytes, publisher: Session | None) -> Measured | None:
        """Return the measurement for a request, if it is sampled."""
        if self._export.latency is None or publisher is None:
            return None
        return latency.measured(
            self._export.latency,
            header,
            publisher,
            share=self._share,
            chance=self._exporter.random,
        )


def request_header(header: bytes, told: dict[str, Any]) -> bytes:
    """Return the request header with a description of the asker, and without a forged one."""
    info = json.dumps(told, separators=(",", ":")).encode()
    return headers.add(_REQUEST_INFO.sub(b"", header), REQUEST_INFO, info)
