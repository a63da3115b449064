"""
Services of other accounts: requests go there, and their answers come back.

A request is published in the account that exports the service, under the name it has
there and with a reply subject made for it. Whoever answers on that subject answers
into the account that asked, and finds nothing else of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.config.accounts import Export
from penstock.config.sharing import Relation
from penstock.core.account import Account, single_messages
from penstock.core.reports.clientinfo import client_account, client_info
from penstock.core.routing.route import ACK_PREFIX
from penstock.core.sharing import latency
from penstock.core.sharing.latency import Measured
from penstock.hot.wire import CRLF, PUB, Op
from penstock.protocol import headers, times

if TYPE_CHECKING:
    from penstock.core.routing.route import Subscription
    from penstock.core.session import Session

REPLY_PREFIX = "_R_."
REQUEST_INFO = b"Nats-Request-Info"
_REQUEST_INFO = re.compile(rb"\r\n%b:[^\r\n]*" % REQUEST_INFO, re.IGNORECASE)
"""In whatever letters: some clients do not tell them apart."""
SWEEP_MIN = 1024
"""Answers waited for before those that came too late are looked for."""


class Waiting(NamedTuple):
    """An answer that is waited for."""

    account: Account
    reply: bytes
    export: Export
    until_ns: int
    measured: Measured | None = None


class Replies:
    """The reply subjects made for requests that came into one account from others."""

    def __init__(
        self,
        account: Account,
        new_id: Callable[[], str],
        clock_ns: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._account = account
        self._new_id = new_id
        self._clock_ns = clock_ns
        self._call_later = call_later
        self._prefix = f"{REPLY_PREFIX}{new_id()}.".encode()
        self._waiting: dict[bytes, Waiting] = {}
        self._sweep_at = SWEEP_MIN
        self._listening: Subscription | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def open(
        self, account: Account, reply: bytes, export: Export, measured: Measured | None = None
    ) -> bytes:
        """Return a subject here that leads to a reply subject of another account."""
        if self._listening is None:
            self._listening = self._account.listen(
                self._prefix + b">", self._on_answers, deliver=self.deliver
            )
        if len(self._waiting) >= self._sweep_at:
            self._sweep()
        subject = self._prefix + self._new_id().encode()
        until_ns = self._clock_ns() + int(export.response_s_max * times.SECOND_NS)
        self._waiting[subject] = Waiting(account, reply, export, until_ns, measured)
        if measured is not None:
            self._call_later(export.response_s_max, lambda: self._give_up(subject, measured))
        return subject

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
        """Tell this account, whose service it is, what became of a request."""
        latency.tell(
            self._account,
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

    def deliver(self, subject: bytes, publishes: list[Op]) -> None:
        """Hand over what JetStream delivers: it keeps its own subject on the other side too."""
        waiting = self._take(subject, is_end=False)
        if waiting is None:
            return
        if waiting.export.response == "singleton":
            publishes = single_messages(publishes[0])[:1]
        waiting.account.deliver_as(waiting.reply, publishes)

    def _take(self, subject: bytes, *, is_end: bool) -> Waiting | None:
        """Return who waits for an answer, unless it comes too late; forget it if it is the last."""
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
        waiting = self._take(subject, is_end=message[4] == 0)
        if waiting is None:
            return
        if reply and not reply.startswith(ACK_PREFIX):
            # Whoever answers may ask back.
            reply = waiting.account.replies.open(self._account, reply, waiting.export)
        waiting.account.respond([(PUB, waiting.reply, reply, *rest)], publisher)
        if waiting.measured is not None:
            self.tell(waiting.measured, responder=publisher)


class ServiceImport:
    """One imported service: listens here, and asks over there."""

    def __init__(
        self,
        importer: Account,
        exporter: Account,
        relation: Relation,
        *,
        export: Export,
        share: bool,
    ) -> None:
        self._importer = importer
        self._exporter = exporter
        self._relation = relation
        self._export = export
        self._share = share
        self._listening: Subscription | None = None

    def open(self) -> None:
        """Begin to take requests."""
        self._listening = self._importer.listen(
            self._relation.local, self._on_requests, deliver=self._deliver
        )

    def close(self) -> None:
        """Take no more."""
        assert self._listening is not None, "open() comes first"
        self._importer.unlisten(self._listening)

    def _on_requests(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            for message in single_messages(publish):
                self._ask(message, publisher)

    def _deliver(self, subject: bytes, publishes: list[Op]) -> None:
        """Hand over what JetStream delivers: it keeps its own subject on the other side too."""
        exporter, target = self._exporter, self._relation.to_foreign(subject)
        if exporter.mappings is not None:
            mapped = exporter.mappings.apply([(PUB, target, b"", 0, 0, CRLF)])
            target = mapped[0][1] if mapped else b""
        outer = exporter.asked
        for message in chain.from_iterable(map(single_messages, publishes)):
            exporter.asked = self._told(message)
            exporter.deliver_as(target, [exporter.asked])
        exporter.asked = outer

    def _told(self, message: Op) -> Op:
        """Return a message that says which account it comes from."""
        kind, subject, reply, header_bytes, _, data = message
        header = self._header(data[:header_bytes], None)
        content = header + data[header_bytes:]
        return (kind, subject, reply, len(header), len(content) - len(CRLF), content)

    def _header(self, header: bytes, publisher: Session | None) -> bytes:
        """Return the header of a request with who asks, as far as the service may know it."""
        if publisher is None:
            return request_header(header, {"acc": self._importer.name})
        told = client_info(publisher) if self._share else client_account(publisher)
        return request_header(header, told)

    def _ask(self, message: Op, publisher: Session | None) -> None:
        _, subject, reply, header_bytes, _, data = message
        foreign = self._relation.to_foreign(subject)
        header = self._header(data[:header_bytes], publisher)
        request: Op = (PUB, foreign, b"", len(header), 0, header + data[header_bytes:])
        exporter = self._exporter
        measured = self._measured(data[:header_bytes], publisher)
        if measured is not None and not reply:
            exporter.replies.tell(measured, failure=latency.BAD_REQUEST)
        mapped = [request] if exporter.mappings is None else exporter.mappings.apply([request])
        if not mapped or not exporter.has_interest(mapped[0][1]):
            self._importer.answer_no_responders([message], publisher)
            if measured is not None and reply:
                exporter.replies.tell(measured, failure=latency.UNAVAILABLE)
            return
        if reply and not reply.startswith(ACK_PREFIX):
            reply = exporter.replies.open(self._importer, reply, self._export, measured)
        content = mapped[0][5]
        asked: Op = (PUB, mapped[0][1], reply, len(header), len(content) - len(CRLF), content)
        outer, exporter.asked = exporter.asked, asked
        exporter.publish([asked], publisher)
        exporter.asked = outer

    def _measured(self, header: bytes, publisher: Session | None) -> Measured | None:
        """Return what to measure of a request, if it is one of those that are."""
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
    """Return the header of a request with what is told of who asks, whatever it said itself."""
    info = json.dumps(told, separators=(",", ":")).encode()
    return headers.add(_REQUEST_INFO.sub(b"", header), REQUEST_INFO, info)
