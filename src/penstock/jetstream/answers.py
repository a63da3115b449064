"""
The answers a stream owes. They leave once the change they promise is safe, or known to be lost.

An answer is collected when its message is stored (`owe…`), belongs to the next commit
(`begin_commit`), and is sent when that commit has ended (`send`). If the disk fails meanwhile, each
answer is decided separately: a message that is stored after all is confirmed, the rest are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.core.runs import new_message
from penstock.errors import cause
from penstock.jetstream.promise import Promise, never

if TYPE_CHECKING:
    from penstock.core.account import Account
    from penstock.errors import JetStreamError
    from penstock.hot.wire import Op
    from penstock.jetstream.intake.pubacks import PubAcks
    from penstock.jetstream.store.store import Store

log = logging.getLogger("penstock")

Owed = tuple[int, list[Any]]
"""PubAcks as (first sequence, reply subjects), others as (0, promises)."""


class Answers:
    """The answers that one stream owes."""

    def __init__(
        self,
        account: Account,
        store: Store,
        pubacks: PubAcks,
        touch: Callable[[], None],
        is_settled: Callable[[], bool],
    ) -> None:
        """
        Start empty; `touch` makes the next commit include the stream, so that the answers leave.

        `is_settled` tells whether everything stored would survive a power cut.
        """
        self._account = account
        self._store = store
        self._pubacks = pubacks
        self._touch = touch
        self._is_settled = is_settled
        self.is_silent = False
        """Whether publishers get no answer (`no_ack`)."""
        self._owed: list[Owed] = []
        self._committing: list[Owed] = []

    # Owed answers.

    def owe_acks(self, first_sequence: int, replies: list[bytes]) -> None:
        """Send each reply subject its sequence once that is safe; b"" wants no ack."""
        assert first_sequence > 0, "0 marks promises"
        self._owed.append((first_sequence, replies))

    def owe(self, promise: Promise) -> None:
        """Publish a promise once everything before it is safe."""
        self._owed.append((0, [promise]))

    def announce(self, publishes: list[Op], last_sequence: int) -> None:
        """Publish messages that nobody waits for, once the messages up to a sequence are safe."""
        is_stored = self._is_stored(last_sequence)
        self.owe(Promise(publishes, is_stored, lambda error: None, is_answer=False))

    def owe_document(self, reply: bytes, document: bytes, last_sequence: int) -> None:
        """Answer a publish once the messages up to a sequence are safe."""
        is_stored = self._is_stored(last_sequence)
        message = new_message(reply, document)
        self.owe(Promise([message], is_stored, lambda error: self._refuse(reply, error)))

    def owe_confirmation(self, reply: bytes) -> None:
        """Confirm an ack once the messages it removed are gone; silent if the disk fails."""
        self.owe(Promise([new_message(reply, b"")], never, lambda error: None))
        self._touch()

    def tell(self, reply: bytes, document: bytes) -> None:
        """Send an answer that shows stored messages, once those are safe."""
        if self._is_settled() or not reply:
            self.answer(reply, document)
        else:
            self.show([new_message(reply, document)], lambda error: self._refuse(reply, error))

    def show(self, messages: list[Op], refuse: Callable[[JetStreamError], None]) -> None:
        """Send messages that show stored ones, once those are safe; there may be none."""
        if not messages:
            return
        self.owe(Promise(messages, never, refuse, is_view=True))
        self._touch()

    def answer(self, reply: bytes, document: bytes) -> None:
        """Answer immediately, without waiting for anything."""
        if reply and not self.is_silent:
            self._account.send(reply, document)

    def _is_stored(self, sequence: int) -> Callable[[], bool]:
        return lambda: sequence <= self._store.last_sequence

    def _refuse(self, reply: bytes, error: JetStreamError) -> None:
        self.answer(reply, self._pubacks.refused(error))

    # Commits.

    def begin_commit(self) -> None:
        """Let the commit that begins now cover everything owed so far."""
        self._committing += self._owed
        self._owed = []

    def take_committing(self) -> list[Owed]:
        """Return the answers of the commit that has ended."""
        owed, self._committing = self._committing, []
        return owed

    def put_back(self, owed: list[Owed]) -> None:
        """Keep answers for the next commit, ahead of those owed since."""
        self._owed = owed + self._owed

    def hold_back(self, owed: list[Owed], safe_sequence: int) -> list[Owed]:
        """Return the answers that are safe. From the first unsafe one on, all wait for a commit."""
        self._touch()
        for index, (first_sequence, items) in enumerate(owed):
            # An ack needs its message; other answers need everything before them.
            safe = max(safe_sequence + 1 - first_sequence, 0) if first_sequence > 0 else 0
            if safe < len(items):
                rest = (first_sequence + safe, items[safe:])
                self.put_back([rest, *owed[index + 1 :]])
                return owed[:index] + ([(first_sequence, items[:safe])] if safe else [])
        return owed

    def send(self, owed: list[Owed]) -> None:
        """Send answers. They belong to different clients, so an error stays with its own."""
        for first_sequence, items in owed:
            try:
                if first_sequence > 0:
                    self._pubacks.send(first_sequence, items)
                else:
                    self._keep(items)
            except Exception as error:
                log.error("An answer cannot be sent: %s", cause(error))

    def _keep(self, promises: list[Promise]) -> None:
        for promise in promises:
            if promise.is_answer:
                self._account.answer(promise.publishes)
            else:
                self._account.publish(promise.publishes, None)

    def decide(self, error: JetStreamError, failed: Callable[[Exception], None]) -> None:
        """
        Answer everything owed after the store went back: confirm it, or refuse with an error.

        `failed` takes the error of an answer that fails; the others are still answered.
        """
        owed, self._owed = self._owed, []
        for first_sequence, items in owed:
            try:
                self._decide(first_sequence, items, error)
            except Exception as caught:
                failed(caught)

    def refuse_views(self, error: JetStreamError, failed: Callable[[Exception], None]) -> None:
        """
        Refuse what only shows messages, while nobody knows which of them exist.

        Everything else stays owed: it may have happened, and then a refusal would be wrong.
        """
        owed, self._owed = self._owed, []
        views: list[Promise] = []
        for first_sequence, items in owed:
            if not first_sequence:
                views += [each for each in items if each.is_view]
                items = [each for each in items if not each.is_view]
            if items:
                self._owed.append((first_sequence, items))
        for view in views:
            try:
                view.refuse(error)
            except Exception as caught:
                failed(caught)

    def _decide(self, first_sequence: int, items: list[Any], error: JetStreamError) -> None:
        if not first_sequence:
            for promise in items:
                if promise.is_kept():
                    self.send([(0, [promise])])
                else:
                    promise.refuse(error)
            return
        stored = max(self._store.last_sequence + 1 - first_sequence, 0)
        if stored:
            self.send([(first_sequence, items[:stored])])
        for reply in items[stored:]:
            self._refuse(reply, error)
