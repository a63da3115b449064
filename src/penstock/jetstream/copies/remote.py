"""
How a stream reaches an origin that it cannot read directly: by messages alone.

There are two ways. One is the stream's own account, whose imports may lead to the API of another
account: `AccountRemote` does that. The other is a connection to another server, which a caller with
sockets has to provide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.core.runs import new_message, payloads
from penstock.protocol import wellknown

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.hot.wire import Op
    from penstock.jetstream.context import Context

Arrival = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply subject, header block and payload of a message."""
Receive = Callable[[list[Arrival]], None]


class RemoteWatcher(Protocol):
    """A user of a remote, which has to know whether the remote is reachable."""

    def on_connected(self) -> None:
        """React to a connection: requests are answered from now on."""

    def on_lost(self, reason: str) -> None:
        """React to a lost connection: nothing is answered, and every subscription has ended."""

    def on_refused(self, reason: str) -> None:
        """React to a request that is not permitted."""


class Remote(Protocol):
    """A place where JetStream answers. No method blocks, and none calls back immediately."""

    api: str
    """The prefix of its API subjects."""

    def attach(self, watcher: RemoteWatcher) -> None:
        """Keep it reachable for a watcher, and report when it is and when it no longer is."""

    def detach(self, watcher: RemoteWatcher) -> None:
        """Stop reporting; messages already published are still sent."""

    def new_inbox(self) -> str:
        """Return a prefix for subjects that lead back here and nowhere else."""

    def subscribe(self, subject: str, receive: Receive) -> Callable[[], None]:
        """Hand on the messages of a subject, in order; return a function that ends that."""

    def publish(
        self, subject: bytes, payload: bytes = b"", *, reply: bytes = b"", header: bytes = b""
    ) -> None:
        """Send a message, if it is reachable."""


class AccountRemote:
    """The remote that an account's own imports and exports make."""

    def __init__(self, context: Context, api: str) -> None:
        self.api = api
        self._context = context
        self._watchers: list[RemoteWatcher] = []

    def attach(self, watcher: RemoteWatcher) -> None:
        """Report that it is reachable, which it always is."""
        self._watchers.append(watcher)
        self._soon(lambda: watcher.on_connected() if watcher in self._watchers else None)

    def detach(self, watcher: RemoteWatcher) -> None:
        """Stop reporting."""
        self._watchers.remove(watcher)

    def new_inbox(self) -> str:
        """Return a prefix for subjects that nobody else uses."""
        return f"{wellknown.INBOX}.{self._context.new_id()}"

    def subscribe(self, subject: str, receive: Receive) -> Callable[[], None]:
        """Hand on the messages of a subject, but not in the middle of their cause."""
        account = self._context.account
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

        # Imported streams only reach subscriptions that are not internal.
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
        self._context.account.publish([message], None)

    def _soon(self, action: Callable[[], None]) -> None:
        context = self._context
        context.timers.at(context.clock_ns(), lambda now_ns: action())


def _arrivals(publish: Op) -> list[Arrival]:
    _, subject, reply, header_bytes, _, _ = publish
    return [
        (subject, reply, data[:header_bytes], data[header_bytes:-2]) for data in payloads(publish)
    ]
