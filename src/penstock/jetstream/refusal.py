"""What an account without JetStream is told by the API of a server that has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.account import Account, message_count
from penstock.errors import JetStreamError
from penstock.jetstream import clusterapi, consumerapi, errorcodes, snapshotapi, streamapi
from penstock.jetstream.api import PREFIX, Call, encode_answer
from penstock.jetstream.publish import error_document
from penstock.jetstream.stream import message
from penstock.wire import Op

if TYPE_CHECKING:
    from penstock.core.session import Session

CALLS = streamapi.CALLS | snapshotapi.CALLS | consumerapi.CALLS | clusterapi.CALLS


class Refusal:
    """Answers each call of the API with the same error; what is no call, with nothing."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def open(self) -> None:
        """Start to listen."""
        self._account.listen(PREFIX + b">", self._on_batch)

    def _on_batch(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            tokens = publish[1][len(PREFIX) :].decode(errors="replace").split(".")
            call = _find(tokens)
            if call is None:
                self._account.answer_no_responders([publish], publisher)
            elif publish[2]:
                self._account.publish([_answer(call, publish[2])] * message_count(publish), None)


def _find(tokens: list[str]) -> Call | None:
    for length in (3, 2, 1):
        call = CALLS.get(tuple(tokens[:length]))
        if call is not None and (call.names == len(tokens) - length or call.names < 0):
            return call
    return None


def _answer(call: Call, reply: bytes) -> Op:
    error = JetStreamError(errorcodes.NOT_ENABLED_FOR_ACCOUNT)
    document = {"error": error_document(error)} | dict(call.on_error or {})
    return message(reply, encode_answer(call.kind, document))
