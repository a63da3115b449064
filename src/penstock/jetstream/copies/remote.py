"""
How a stream reaches an origin that it can not read itself: by messages alone.

There are two ways. One is the account the stream is in, whose imports may lead to
the API of another account: that one is here. The other is a connection to another
server, which somebody with sockets has to hand in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.core.account import new_message, payloads

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.hot.wire import Op
    from penstock.jetstream.engine import Engine

Arrival = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply subject, header block and payload of a message."""
Receive = Callable[[list[Arrival]], None]


class Watcher(Protocol):
    """Who uses a remote, and has to know whether it can."""

    def on_connected(self) -> None:
        """Requests are answered from now on."""

    def on_lost(self, reason: str) -> None:
        """Nothing is answered, and every subscription has ended."""

    def on_refused(self, reason: str) -> None:
        """Something that was asked of it is not permitted."""


class Remote(Protocol):
    """A place where JetStream answers. Nothing in here blocks, and nothing calls back at once."""

    api: str
    """What the subjects of its API begin with."""

    def attach(self, watcher: Watcher) -> None:
        """Keep it reachable for somebody, and tell them when it is and when it no longer is."""

    def detach(self, watcher: Watcher) -> None:
        """Tell them no more; what they have published is still sent."""

    def new_inbox(self) -> str:
        """Return the beginning of subjects that lead back here and to nobody else."""

    def subscribe(self, subject: str, receive: Receive) -> Callable[[], None]:
        """Hand on what comes to a subject, in order; return what ends that."""

    def publish(
        self, subject: bytes, payload: bytes = b"", *, reply: bytes = b"", header: bytes = b""
    ) -> None:
        """Send a message, if it is reachable."""


class AccountRemote:
    """What the streams of an account reach through the account itself."""

    def __init__(self, engine: Engine, api: str) -> None:
        self.api = api
        self._engine = engine
        self._watchers: list[Watcher] = []

    def attach(self, watcher: Watcher) -> None:
        """Say that it is reachable, which it always is."""
        self._watchers.append(watcher)
        self._soon(lambda: watcher.on_connected() if watcher in self._watchers else None)

    def detach(self, watcher: Watcher) -> None:
        """Say nothing more."""
        self._watchers.remove(watcher)

    def new_inbox(self) -> str:
        """Return the beginning of subjects that nobody else uses."""
        return f"_INBOX.{self._engine.new_id()}"

    def subscribe(self, subject: str, receive: Receive) -> Callable[[], None]:
        """Hand on what comes to a subject, not in the middle of what caused it."""
        account = self._engine.account
        waiting: list[Arrival] = []

        def hand_on() -> None:
            arrived = waiting.copy()
            waiting.clear()
            if arrived:
                receive(arrived)

        def on_batch(batch: list[Op], publisher: Session | None) -> None:
            if not waiting:
                self._soon(hand_on)
            waiting.extend(arrival for publish in batch for arrival in _arrivals(publish))

        # Imported streams come to those who are not internal.
        subscription = account.listen(
            subject.encode(),
            on_batch,
            is_internal=False,
            deliver=lambda _, publishes: on_batch(publishes, None),
        )

        def end() -> None:
            account.unlisten(subscription)
            waiting.clear()

        return end

    def publish(
        self, subject: bytes, payload: bytes = b"", *, reply: bytes = b"", header: bytes = b""
    ) -> None:
        """Publish in the account."""
        message = new_message(subject, payload, reply=reply, header=header)
        self._engine.account.publish([message], None)

    def _soon(self, action: Callable[[], None]) -> None:
        engine = self._engine
        engine.timers.at(engine.clock_ns(), lambda now_ns: action())


def _arrivals(publish: Op) -> list[Arrival]:
    _, subject, reply, header_bytes, _, _ = publish
    return [
        (subject, reply, data[:header_bytes], data[header_bytes:-2]) for data in payloads(publish)
    ]
