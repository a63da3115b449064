"""The server as its sessions see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.config.server import ServerConfig
    from penstock.core.account import Account
    from penstock.core.identity.auth import Authenticator
    from penstock.core.identity.tokenauth import TokenAuthenticator
    from penstock.core.session import Session


class ScheduledCall(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Host(Protocol):
    """The broker a session belongs to: its rules, its accounts, its clock, and its lists."""

    config: ServerConfig
    server_name: str
    turn_ns: int
    """How long one session may currently keep the others waiting."""
    traces: bool
    """Whether protocol lines are logged."""
    stale_connections: int
    default_account: Account
    dirty: list[Session]
    """Sessions whose outbox has grown since it was last written."""
    congested: list[Session]
    """Sessions that got a message while they already had too many waiting."""
    behind: list[Session]
    """Sessions with postponed operations."""

    @property
    def clock_ns(self) -> Callable[[], int]:
        """The time, in nanoseconds."""

    @property
    def call_later(self) -> Callable[[float, Callable[[], None]], ScheduledCall]:
        """Call a function after a delay in seconds."""

    @property
    def accounts(self) -> dict[str, Account]:
        """Every account by its name."""

    @property
    def system_account(self) -> Account:
        """The account that receives the server's events."""

    def authenticator_of(self, kind: str) -> Authenticator | TokenAuthenticator:
        """Return the authenticator for the clients of a listener."""

    def describe(self) -> dict[str, Any]:
        """Return the description of this server, with the time, as events carry it."""

    def info_line(self, session: Session, **extra: Any) -> bytes:
        """Return the INFO for one session."""

    def connected(self, session: Session) -> None:
        """Report a new client to the system account."""

    def refused(self, session: Session) -> None:
        """Note a connection that failed to authenticate."""

    def violation(self, session: Session, what: str) -> None:
        """Note an attempt at something not permitted."""
