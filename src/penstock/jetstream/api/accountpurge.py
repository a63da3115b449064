"""`$JS.API.ACCOUNT.PURGE.<account>`: the system account has all streams of an account deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.core.account import Account, message_count
from penstock.hot.wire import Op
from penstock.jetstream.api.api import PREFIX, encode_answer

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.jetstream.engine import Engine

SUBJECT = PREFIX + b"ACCOUNT.PURGE."
ANSWER = encode_answer("account_purge", {"initiated": True})


class AccountPurge:
    """Answers once the streams can not come back; an account without any is purged at once."""

    def __init__(self, system: Account, engines: Mapping[str, Engine]) -> None:
        self._system = system
        self._engines = engines

    def open(self) -> None:
        """Start to listen."""
        self._system.listen(SUBJECT + b"*", self._on_batch)

    def _on_batch(self, batch: list[Op], publisher: Session | None) -> None:
        for publish in batch:
            if not publish[1].startswith(SUBJECT):
                continue
            name = publish[1].removeprefix(SUBJECT).decode(errors="replace")
            for _ in range(message_count(publish)):
                self._purge(name, publish[2])

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
