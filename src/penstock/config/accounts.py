"""
Users, what they may do, and the accounts they live in: as they are configured.

Nothing here looks at a connection. `core.auth` finds out who somebody is, and
`core.permissions` applies the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from penstock.errors import ConfigError
from penstock.keys import nkeys
from penstock.protocol import subjects

GLOBAL = "$G"
"""The account of those who are in no other."""
OperatorToken = str

SYSTEM = "$SYS"
"""The account of the server itself, unless another is named `system_account`."""
CONNECTION_TYPES = (
    *("STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"),
)
"""How a user may be told to connect, in the words of nats-server."""


DIRECTORY_BYTES_MAX = 255
"""What file systems take for the name of a directory."""


def directory_name(account: str) -> str:
    """Return an account's name as one that a directory may have."""
    quoted = quote(account, safe="$")
    return quoted.replace(".", "%2E") if quoted.startswith(".") else quoted


def check_name(account: str) -> None:
    """Refuse a name that no directory can be given, or that would break a line of the log."""
    if not account or not account.isprintable():
        raise ConfigError(
            f"{account!r:.60} is no name for an account; "
            "hint: it has no control characters, and is not empty"
        )
    size = len(directory_name(account))
    if size > DIRECTORY_BYTES_MAX:
        raise ConfigError(
            f"the account name `{account[:20]}…` is too long: its directory's name would have "
            f"{size} bytes, and {DIRECTORY_BYTES_MAX} are possible; hint: choose a shorter one"
        )


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


@dataclass(frozen=True, kw_only=True)
class AccountLimits:
    """Bounds of one account; -1 is no limit."""

    connections_max: int = -1
    subscriptions_max: int = -1
    """Of each connection."""
    payload_bytes_max: int = -1


@dataclass(frozen=True, kw_only=True)
class JetStreamLimits:
    """What the streams and consumers of one account may take; -1 is no limit."""

    memory_bytes_max: int = -1
    storage_bytes_max: int = -1
    streams_max: int = -1
    consumers_max: int = -1
    ack_pending_max: int = -1
    memory_stream_bytes_max: int = -1
    """The largest `max_bytes` of a memory stream."""
    storage_stream_bytes_max: int = -1
    """The largest `max_bytes` of a file stream."""
    requires_max_bytes: bool = False


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How the answers of a service are measured."""

    subject: str
    """Where it is told."""
    sampling: int = 100
    """How many requests in a hundred; those of a trace that wants it are measured anyway."""

    def __post_init__(self) -> None:
        if not 0 <= self.sampling <= 100:
            raise ConfigError(
                f"`latency` has a `sampling` of {self.sampling}, not 1 to 100 or `headers`"
            )


@dataclass(frozen=True, kw_only=True)
class Export:
    """A stream of messages, or a service, that other accounts may import."""

    kind: Literal["stream", "service"]
    subject: str
    accounts: tuple[str, ...] | None = None
    """Who may import it; None: everybody."""
    response: Literal["singleton", "stream", "chunked"] = "singleton"
    response_s_max: float = 120.0
    """How long the answers to a request may take."""
    account_token: int = 0
    """Which token of the subject, from 1, has to be the name of the importing account."""
    latency: Latency | None = None
    """How its answers are measured, if they are."""
    needs_token: bool = False
    """Whether who imports it needs a token of the exporter's."""
    revocations: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Account → time up to which tokens issued to it count no more."""

    def offers(self, taken: Import) -> bool:
        """Tell whether this is what an import means."""
        pattern, subject = self.subject.encode(), taken.subject.encode()
        return self.kind == taken.kind and subjects.contains(pattern, subject)

    def allows(self, account: str, taken: Import) -> bool:
        """Tell whether an account may have what this offers."""
        if self.needs_token:
            return taken.is_activated
        if self.account_token:
            return taken.subject.split(".")[self.account_token - 1] == account
        return self.accounts is None or account in self.accounts


@dataclass(frozen=True, kw_only=True)
class Import:
    """What an account takes from another one that exports it."""

    kind: Literal["stream", "service"]
    account: str
    subject: str
    """What it is called there."""
    to: str = ""
    """What it is called here; empty: the same."""
    share: bool = False
    """Whether a service may know which client asks."""
    token: str = ""
    """What permits it, where the export needs a token."""
    is_activated: bool = False
    """Whether that token is good."""

    @property
    def local(self) -> str:
        """What it is called in the importing account."""
        return self.to or self.subject


@dataclass(frozen=True, kw_only=True)
class Destination:
    """One of the subjects that a mapping leads to, and the percentage that takes it."""

    subject: str
    weight: int = 100


@dataclass(frozen=True, kw_only=True)
class SubjectMapping:
    """A subject that publishers use, and what becomes of it."""

    source: str
    destinations: tuple[Destination, ...]


@dataclass(frozen=True, kw_only=True)
class Resolver:
    """Where the tokens of accounts are: in the file alone, or in a directory as well."""

    directory: str = ""
    allow_delete: bool = False
    """Whether an operator may have accounts deleted."""
    hard_delete: bool = False
    """Whether the file of such an account goes too; else it gets another name."""
    limit: int = 0
    """The most accounts; 0 is no limit."""

    def __post_init__(self) -> None:
        if self.hard_delete and not self.allow_delete:
            raise ConfigError("`resolver` has `hard_delete`, which needs `allow_delete`")


@dataclass(frozen=True, kw_only=True)
class AuthCallout:
    """A service that says who users are, in an account whose `auth_users` it connects as."""

    issuer: str
    """The key that signs its answers."""
    auth_users: tuple[str, ...]
    account: str = GLOBAL
    xkey: str = ""
    """The key to encrypt requests with, if they are to be."""
    allowed_accounts: tuple[str, ...] = ()
    """Accounts whose users it decides about, or puts users in; none is all of them."""

    def __post_init__(self) -> None:
        if not nkeys.is_public(self.issuer, nkeys.ACCOUNT_PREFIX):
            raise ConfigError(
                f'`auth_callout` has the issuer "{self.issuer}", not the public key of an account'
            )
        if not self.auth_users:
            raise ConfigError("`auth_callout` needs `auth_users`: the users of the service itself")
        if self.xkey and not nkeys.is_public(self.xkey, nkeys.CURVE_PREFIX):
            raise ConfigError(f'`auth_callout` has the xkey "{self.xkey}", not a public curve key')


@dataclass(frozen=True, kw_only=True)
class AccountClaims:
    """What a token says about an account beside what a configuration could say."""

    name: str = ""
    tags: tuple[str, ...] = ()
    issuer: str = ""
    issued_s: int = 0
    expires_s: int = 0
    """0: never."""
    signing_keys: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """Keys that sign its users beside its own; with a template, what such users are bound to."""
    revocations: Mapping[str, int] = field(default_factory=dict)
    """User → time up to which tokens issued to it count no more; `*` is everybody."""
    refuses_bearers: bool = False
    auth_callout: AuthCallout | None = None
    """Who says who its users are, if a service does."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """One entry of `accounts`: users that share a space of subjects and streams."""

    name: str
    users: tuple[User, ...] = ()
    default_permissions: Permissions | None = None
    limits: AccountLimits = AccountLimits()
    jetstream: JetStreamLimits | None = None
    """None: the account has no JetStream."""
    exports: tuple[Export, ...] = ()
    imports: tuple[Import, ...] = ()
    mappings: tuple[SubjectMapping, ...] = ()
    claims: AccountClaims | None = None
    """What its token says, if it comes from one."""

    @property
    def label(self) -> str:
        """What people call it."""
        return (self.claims.name if self.claims is not None else "") or self.name

    def export_of(self, taken: Import) -> Export | None:
        """Return the export that an import means."""
        return next((export for export in self.exports if export.offers(taken)), None)

    def export_for(self, taken: Import, account: str) -> Export | None:
        """Return the export by which `account` may have an import; None if it may not."""
        for export in self.exports:
            if export.offers(taken) and export.allows(account, taken):
                return export
        return None
