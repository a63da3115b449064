"""The API's answers to an account without JetStream, on a server that has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.core.account import Account
from penstock.core.reports.messagetrace import of_system
from penstock.core.runs import message_count, new_message
from penstock.errors import ApiError, JetStreamError
from penstock.hot.wire import REPLY, SUBJECT, Op
from penstock.jetstream.api import clusterapi, consumerapi, snapshotapi, streamapi
from penstock.jetstream.api.api import GET, NEXT, encode_answer
from penstock.jetstream.api.domain import PREFIX, listen
from penstock.protocol import errorcodes, subjects

if TYPE_CHECKING:
    from penstock.core.session import Session

CALLS = streamapi.CALLS | snapshotapi.CALLS | consumerapi.CALLS
SILENT = ("META.", "SERVER.", "ACCOUNT.")
"""Calls that a single server never answers."""
OF_CONSUMER = "CONSUMER.RESET."
"""A call that the consumer itself answers, so without a consumer there is no answer."""
SYSTEM_RESPONSE = "system"


class RefusingApi:
    """Answers each API call with an error, and other subjects with nothing."""

    def __init__(self, account: Account, domain: str, *, is_system: bool) -> None:
        self._account = account
        self._domain = domain
        self._is_system = is_system

    def open(self) -> None:
        """Start listening."""
        traced = of_system(self._account, self._on_batch)
        self._listening = listen(self._account.listen, self._domain, b">", self._on_batch, traced)

    def close(self) -> None:
        """Stop answering."""
        for subscription in self._listening:
            self._account.unlisten(subscription)

    def _on_batch(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            if not publish[SUBJECT].startswith(PREFIX):
                continue
            name = publish[SUBJECT][len(PREFIX) :]
            if publish[SUBJECT].startswith((GET, NEXT)) and not self._is_system:
                self._account.answer_no_responders([publish], publisher)
                continue
            document = self._document(subjects.text(name))
            if document is not None and publish[REPLY]:
                answers = [new_message(publish[REPLY], document)] * message_count(publish)
                self._account.respond(answers, None)

    def _document(self, name: str) -> bytes | None:
        """Return the answer to a call, if it has one."""
        tokens = name.split(".")
        if name.startswith(SILENT):
            return None
        if self._is_system and name != "INFO":
            return _refused(SYSTEM_RESPONSE, errorcodes.NOT_ENABLED_FOR_ACCOUNT, {})
        if name.startswith(OF_CONSUMER):
            return None
        for length in (3, 2, 1):
            key, names = tuple(tokens[:length]), len(tokens) - length
            for calls, code in (
                (CALLS, errorcodes.NOT_ENABLED_FOR_ACCOUNT),
                (clusterapi.CALLS, errorcodes.CLUSTER_REQUIRED),
            ):
                call = calls.get(key)
                if call is not None and (call.names == names or call.names < 0):
                    return _refused(call.kind, code, call.on_error or {})
        return None


def _refused(kind: str, code: ApiError, more: Mapping[str, Any]) -> bytes:
    return encode_answer(kind, {"error": JetStreamError(code).document, **more})
