"""What an account without JetStream is told by the API of a server that has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.core.account import Account, message_count, new_message
from penstock.errors import ApiError, JetStreamError
from penstock.hot.wire import Op
from penstock.jetstream.api import clusterapi, consumerapi, snapshotapi, streamapi
from penstock.jetstream.api.api import DIRECT_GET, MESSAGE_NEXT, PREFIX, encode_answer
from penstock.protocol import errorcodes

if TYPE_CHECKING:
    from penstock.core.session import Session

CALLS = streamapi.CALLS | snapshotapi.CALLS | consumerapi.CALLS
SILENT = ("META.", "SERVER.", "ACCOUNT.")
"""What one server never answers, whoever asks."""
OF_CONSUMER = "CONSUMER.RESET."
"""What a consumer answers itself, so where there is none, nobody does."""
SYSTEM_RESPONSE = "system"


class Refusal:
    """Answers each call of the API with an error; what is no call, with nothing."""

    def __init__(self, account: Account, *, is_system: bool) -> None:
        self._account = account
        self._is_system = is_system

    def open(self) -> None:
        """Start to listen."""
        self._listening = self._account.listen(PREFIX + b">", self._on_batch)

    def close(self) -> None:
        """Leave the answers to others."""
        self._account.unlisten(self._listening)

    def _on_batch(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            if not publish[1].startswith(PREFIX):
                continue
            name = publish[1][len(PREFIX) :]
            if name.startswith((DIRECT_GET, MESSAGE_NEXT)) and not self._is_system:
                self._account.answer_no_responders([publish], publisher)
                continue
            document = self._document(name.decode(errors="replace"))
            if document is not None and publish[2]:
                answers = [new_message(publish[2], document)] * message_count(publish)
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
