"""`$JS.API.ACCOUNT.PURGE.<account>`: the system account deletes all streams of an account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.account import Account
from penstock.core.runs import message_count
from penstock.hot.wire import Op
from penstock.jetstream.api.api import encode_answer
from penstock.jetstream.api.domain import PREFIX, listen
from penstock.protocol import subjects

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.jetstream.engine import JetStreamEngine

CALL = b"ACCOUNT.PURGE."
SUBJECT = PREFIX + CALL
ANSWER = encode_answer("account_purge", {"initiated": True})


class AccountPurge:
    """Answers once the streams cannot come back; immediately for an account without streams."""

    def __init__(
        self, system: Account, domain: str, engines: Mapping[str, JetStreamEngine]
    ) -> None:
        self._system = system
        self._domain = domain
        self._engines = engines

    def open(self) -> None:
        """Start listening."""
        listen(self._system.listen, self._domain, CALL + b"*", self._on_batch)

    def _on_batch(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            _, subject, reply, *_ = publish
            if not subject.startswith(SUBJECT):
                continue
            name = subjects.text(subject.removeprefix(SUBJECT))
            for _ in range(message_count(publish)):
                self._purge(name, reply)

    def _purge(self, name: str, reply: bytes) -> None:
        engine = self._engines.get(name)
        streams = list(engine.streams.values()) if engine is not None else []
        if not streams:
            self._answer(reply)
            return
        assert engine is not None
        left = len(streams)

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._answer(reply)

        for stream in streams:
            engine.delete_stream(stream, done)

    def _answer(self, reply: bytes) -> None:
        if reply:
            self._system.send(reply, ANSWER)
