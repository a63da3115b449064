"""Acks and flow control answers: from their subject to their consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock import hot
from penstock.core.routing.route import ACK_PREFIX
from penstock.hot.wire import SUBJECT, Op
from penstock.protocol import subjects, wellknown

if TYPE_CHECKING:
    from penstock.core.account import Account
    from penstock.core.session import Session
    from penstock.jetstream.consumers.consumer import Consumer

FLOW_CONTROL_PREFIX = wellknown.FLOW_CONTROL.encode()


class ConsumerReplies:
    """Hands the replies of clients to the consumers of one account."""

    def __init__(self, account: Account, find: Callable[[str, str], Consumer | None]) -> None:
        """`find` returns a consumer by its stream's name and its own."""
        self._account = account
        self._find = find

    def on_acks(self, batch: list[Op], publisher: Session | None) -> None:
        """Hand acks to their consumers, those for the same consumer together."""
        prefix, consumer = self._ack_target(batch[0][SUBJECT])
        if consumer is not None and hot.have_prefix(batch, prefix):
            consumer.on_acks(batch, len(prefix))
            return
        prefix, consumer = b" ", None
        group: list[Op] = []
        for publish in batch:
            if not publish[SUBJECT].startswith(prefix):
                if consumer is not None:
                    consumer.on_acks(group, len(prefix))
                prefix, consumer = self._ack_target(publish[SUBJECT])
                group = []
            if consumer is None:
                self._account.answer_no_responders([publish], publisher)
            group.append(publish)
        if consumer is not None:
            consumer.on_acks(group, len(prefix))

    def _ack_target(self, subject: bytes) -> tuple[bytes, Consumer | None]:
        """Return the prefix of all acks of the same consumer, and the consumer."""
        if not subject.startswith(ACK_PREFIX):
            return b" ", None
        tokens = subject.split(b".")
        # The newer form has the domain and a hash of the account before the names.
        start = 4 if len(tokens) >= 11 else 2
        names = [subjects.text(token) for token in tokens[start : start + 2]]
        prefix = b".".join(tokens[: start + 2]) + b"."
        consumer = self._find(*names) if len(tokens) >= start + 7 else None
        return prefix, consumer if consumer is not None and consumer.hears_acks else None

    def on_flow_control(self, batch: list[Op], publisher: Session | None) -> None:
        """Hand answers to flow control requests to their consumers."""
        for publish in batch:
            tokens = subjects.text(publish[SUBJECT]).split(".")
            is_ours = len(tokens) > 3 and publish[SUBJECT].startswith(FLOW_CONTROL_PREFIX)
            consumer = self._find(tokens[2], tokens[3]) if is_ours else None
            if consumer is not None:
                consumer.on_flow_control(publish)
