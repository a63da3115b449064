"""
Users, what they may do, and the accounts they live in: as they are configured.

Nothing here looks at a connection. `core.auth` finds out who somebody is, and
`core.permissions` applies the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock import nkeys
from penstock.errors import ConfigError

CONNECTION_TYPES = (
    *("STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"),
)
"""How a user may be told to connect, in the words of nats-server."""


@dataclass(frozen=True, kw_only=True)
class SubjectRules:
    """Subjects allowed and denied. `allow=None` allows everything; deny wins."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ResponseRules:
    """
    What a responder may publish to reply subjects it was sent (`allow_responses`).

    A negative value is no limit, as in nats-server.
    """

    messages_max: int = 1
    expires_s: float = 120.0


@dataclass(frozen=True, kw_only=True)
class Permissions:
    """What a user may publish and subscribe to. Subscribe rules may say `subject queue`."""

    publish: SubjectRules = SubjectRules()
    subscribe: SubjectRules = SubjectRules()
    allow_responses: ResponseRules | None = None


@dataclass(frozen=True, kw_only=True)
class User:
    """One entry of `users`: a name and a password, plain or a bcrypt hash; or an nkey."""

    name: str = ""
    password: str = field(default="", repr=False)
    nkey: str = ""
    permissions: Permissions | None = None
    connection_types: frozenset[str] = frozenset()
    """How this user may connect; empty: in any way."""

    def __post_init__(self) -> None:
        if self.nkey and (self.name or self.password):
            raise ConfigError(f"`nkey` {self.nkey} takes no `user` and no `password`")
        if self.nkey and not nkeys.is_public(self.nkey, nkeys.USER_PREFIX):
            raise ConfigError(
                f'`nkey` "{self.nkey}" is not the public key of a user; '
                "hint: it starts with `U` and has 56 characters"
            )
        if not self.id:
            raise ConfigError("each of `users` needs a `user` or an `nkey`")
        for name in self.connection_types - set(CONNECTION_TYPES):
            known = ", ".join(CONNECTION_TYPES)
            raise ConfigError(f'`allowed_connection_types` has "{name}"; it knows {known}')

    @property
    def id(self) -> str:
        """What the user is known by."""
        return self.nkey or self.name
