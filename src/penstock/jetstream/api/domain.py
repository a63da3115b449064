"""
The two names of the API: `$JS.API.` and, where the server has a domain, `$JS.<domain>.API.`.

In every account, the second is just another spelling of the first. Clients with permissions never
get as far under the second: rules judge the first, as in nats-server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.config.accounts import Destination, SubjectMapping
from penstock.core.routing.route import Handler, Subscription, Traced
from penstock.core.sharing.mappings import Mappings
from penstock.hot.wire import KIND, REPLY, SUBJECT, Op
from penstock.protocol import wellknown

if TYPE_CHECKING:
    from penstock.core.reports.messagetrace import MessageTrace
    from penstock.core.session import Session

PREFIX = f"{wellknown.API}.".encode()


class Listen(Protocol):
    """How to listen in an account."""

    def __call__(
        self, subject: bytes, handler: Handler, *, traced: Traced | None = None
    ) -> Subscription:
        """Call `handler` with the messages of a subject."""


def listen(
    listen_to: Listen, domain: str, rest: bytes, handler: Handler, traced: Traced | None = None
) -> list[Subscription]:
    """Call `handler` with the messages to `rest` of the API, under either name."""
    subscriptions = [listen_to(PREFIX + rest, handler, traced=traced)]
    if domain:
        prefix = f"{wellknown.api_of(domain)}.".encode()

        def on_batch(batch: list[Op], publisher: Session | None) -> None:
            handler([_renamed(publish, prefix) for publish in batch], publisher)

        def on_traced(message: Op, publisher: Session, trace: MessageTrace) -> None:
            message = _renamed(message, prefix)
            trace.mapped(message[SUBJECT])
            if traced is not None:
                traced(message, publisher, trace)
            else:
                handler([message], publisher)

        subscriptions.append(listen_to(prefix + rest, on_batch, traced=on_traced))
    return subscriptions


def spellings(domain: str, random: Callable[[], float]) -> Mappings | None:
    """Return the mapping of the second name to the first."""
    if not domain:
        return None
    to = Destination(subject=f"{wellknown.API}.>")
    mapping = SubjectMapping(source=f"{wellknown.api_of(domain)}.>", destinations=(to,))
    return Mappings([mapping], random)


def _renamed(publish: Op, prefix: bytes) -> Op:
    return (publish[KIND], PREFIX + publish[SUBJECT].removeprefix(prefix), *publish[REPLY:])
