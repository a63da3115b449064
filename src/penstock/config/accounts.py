"""
The configuration of users, their permissions, and their accounts.

Nothing here looks at a connection. `core.auth` identifies clients, and `core.permissions`
applies the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from penstock.config.frozen import dataclass
from penstock.errors import ConfigError
from penstock.keys import nkeys
from penstock.protocol import subjects

GLOBAL = "$G"
"""The account of users without another one."""
OperatorToken = str

SYSTEM = "$SYS"
"""The account of the server itself, unless `system_account` names another."""
CONNECTION_TYPES = (
    *("STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"),
)
"""The connection types a user can be limited to, in the words of nats-server."""


DIRECTORY_BYTES_MAX = 255
"""The maximum length of a directory name in file systems."""


def directory_name(account: str) -> str:
    """Return an account's name in a form that is valid for a directory."""
    from urllib.parse import quote

    quoted = quote(account, safe="$")
    return quoted.replace(".", "%2E") if quoted.startswith(".") else quoted


def check_name(account: str) -> None:
    """Refuse a name that is not valid for a directory, or that would break a log line."""
    if not account or not account.isprintable():
        raise ConfigError(
            f"{account!r:.60} is not a valid account name; "
            "hint: it must not be empty or contain control characters"
        )
    size = len(directory_name(account))
    if size > DIRECTORY_BYTES_MAX:
        raise ConfigError(
            f"the account name `{account[:20]}…` is too long: its directory's name would have "
            f"{size} bytes, more than {DIRECTORY_BYTES_MAX}; hint: choose a shorter name"
        )


@dataclass(frozen=True, kw_only=True)
class SubjectRules:
    """Allowed and denied subjects. `allow=None` allows everything; deny wins."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ResponseRules:
    """
    Limits for publishing to reply subjects of received requests (`allow_responses`).

    A negative value is no limit, as in nats-server.
    """

    messages_max: int = 1
    expires_s: float = 120.0


@dataclass(frozen=True, kw_only=True)
class Permissions:
    """Subjects a user may publish and subscribe to. Subscribe rules may be `subject queue`."""

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
    """The allowed connection types of this user; empty: all."""

    def __post_init__(self) -> None:
        if self.nkey and (self.name or self.password):
            raise ConfigError(f"`nkey` {self.nkey} cannot have a `user` or a `password`")
        if self.nkey and not nkeys.is_public(self.nkey, nkeys.USER_PREFIX):
            raise ConfigError(
                f'`nkey` "{self.nkey}" is not the public key of a user; '
                "hint: it starts with `U` and has 56 characters"
            )
        if not self.id:
            raise ConfigError("each of `users` needs a `user` or an `nkey`")
        for name in self.connection_types - set(CONNECTION_TYPES):
            known = ", ".join(CONNECTION_TYPES)
            raise ConfigError(
                f'`allowed_connection_types` has an unknown type "{name}"; hint: one of {known}'
            )

    @property
    def id(self) -> str:
        """The identifier of the user: its name or its nkey."""
        return self.nkey or self.name


@dataclass(frozen=True, kw_only=True)
class AccountLimits:
    """Bounds of one account; -1 is no limit."""

    max_connections: int = -1
    max_subscriptions: int = -1
    """Per connection."""
    max_payload: int = -1


@dataclass(frozen=True, kw_only=True)
class JetStreamLimits:
    """Limits on the streams and consumers of one account; -1 is no limit."""

    max_memory: int = -1
    max_store: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    """The maximum `max_bytes` of a memory stream."""
    store_max_stream_bytes: int = -1
    """The maximum `max_bytes` of a file stream."""
    max_bytes_required: bool = False
    tier: str = ""
    """The replica tier of these limits, if a token has limits per tier."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How the latency of a service is measured."""

    subject: str
    """The subject of the measurements."""
    sampling: int = 100
    """
    The percentage of requests to measure; traced requests that ask for it are always
    measured.
    """

    def __post_init__(self) -> None:
        if not 0 <= self.sampling <= 100:
            raise ConfigError(
                f"`latency` needs a `sampling` from 1 to 100 or `headers`, not {self.sampling}"
            )


@dataclass(frozen=True, kw_only=True)
class Export:
    """A stream of messages, or a service, that other accounts may import."""

    kind: Literal["stream", "service"]
    subject: str
    accounts: tuple[str, ...] | None = None
    """The accounts that may import it; None: all."""
    response: Literal["singleton", "stream", "chunked"] = "singleton"
    response_s_max: float = 120.0
    """How long the replies to a request may take."""
    account_token: int = 0
    """The position of the subject token, from 1, that must name the importing account."""
    latency: Latency | None = None
    """How its latency is measured; None: not at all."""
    allow_trace: bool = False
    """Whether message traces of the requesters identify the service."""
    needs_token: bool = False
    """Whether importers need an activation token from the exporter."""
    revocations: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Account → time; tokens issued to it up to that time are revoked."""

    def offers(self, taken: Import) -> bool:
        """Tell whether an import refers to this export."""
        pattern, subject = self.subject.encode(), taken.subject.encode()
        return self.kind == taken.kind and subjects.contains(pattern, subject)

    def allows(self, account: str, taken: Import) -> bool:
        """Tell whether an account may import this."""
        if self.needs_token:
            return taken.is_activated
        if self.account_token:
            return taken.subject.split(".")[self.account_token - 1] == account
        return self.accounts is None or account in self.accounts


@dataclass(frozen=True, kw_only=True)
class Import:
    """A stream or service that an account imports from the account that exports it."""

    kind: Literal["stream", "service"]
    account: str
    subject: str
    """Its subject in the exporting account."""
    to: str = ""
    """Its subject in the importing account; empty: the same."""
    share: bool = False
    """Whether the service sees which client sent a request."""
    allow_trace: bool = False
    """Whether message traces of the stream's publishers show its receivers here."""
    token: str = ""
    """The activation token, where the export needs one."""
    is_activated: bool = False
    """Whether that token is valid."""

    @property
    def local(self) -> str:
        """Its subject in the importing account."""
        return self.to or self.subject


@dataclass(frozen=True, kw_only=True)
class MessageTracing:
    """Where messages with a `traceparent` are traced to, and the percentage that is."""

    dest: str
    sampling: int = 100

    def __post_init__(self) -> None:
        if not subjects.is_valid_literal(self.dest.encode()):
            raise ConfigError(f'`msg_trace` has an invalid `dest`: "{self.dest}"')
        if not 0 < self.sampling <= 100:
            raise ConfigError(f"`msg_trace` needs a `sampling` from 1 to 100, not {self.sampling}")


@dataclass(frozen=True, kw_only=True)
class Destination:
    """One destination of a mapping, and its share in percent."""

    subject: str
    weight: int = 100


@dataclass(frozen=True, kw_only=True)
class SubjectMapping:
    """A published subject, and its destinations."""

    source: str
    destinations: tuple[Destination, ...]


@dataclass(frozen=True, kw_only=True)
class Resolver:
    """Where account tokens are: only in the file, in a directory, or on a server."""

    directory: str = ""
    url: str = ""
    """The URL of a server that returns an account's token by key."""
    is_cache: bool = False
    """Whether the directory is only a cache."""
    ttl_s: float = 0
    """How long a cache keeps a file; 0: as long as there is room."""
    allow_delete: bool = False
    """Whether an operator may delete accounts."""
    hard_delete: bool = False
    """Whether deleting an account deletes its file; otherwise the file is renamed."""
    limit: int = 0
    """The maximum number of accounts; 0 is no limit."""

    def __post_init__(self) -> None:
        if self.hard_delete and not self.allow_delete:
            raise ConfigError("`resolver` has `hard_delete`, which needs `allow_delete`")
        if self.is_cache and self.allow_delete:
            raise ConfigError("a `resolver` of type `cache` cannot have `allow_delete`")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f'`resolver` has the URL "{self.url}"; hint: it begins with http://')

    @property
    def is_elsewhere(self) -> bool:
        """Whether accounts may exist that this server has not seen yet."""
        return bool(self.directory or self.url)


@dataclass(frozen=True, kw_only=True)
class AuthCallout:
    """A service that authenticates users; it connects as one of the account's `auth_users`."""

    issuer: str
    """The key that signs its responses."""
    auth_users: tuple[str, ...]
    account: str = GLOBAL
    xkey: str = ""
    """The key that encrypts requests; empty: no encryption."""
    allowed_accounts: tuple[str, ...] = ()
    """Accounts that the service may place users in; empty: all."""

    def __post_init__(self) -> None:
        if not nkeys.is_public(self.issuer, nkeys.ACCOUNT_PREFIX):
            raise ConfigError(
                "`auth_callout` has an `issuer` that is not the public key of an account: "
                f'"{self.issuer}"'
            )
        if not self.auth_users:
            raise ConfigError("`auth_callout` needs `auth_users`: the users of the service itself")
        if self.xkey and not nkeys.is_public(self.xkey, nkeys.CURVE_PREFIX):
            raise ConfigError(
                f'`auth_callout` has an `xkey` that is not a public curve key: "{self.xkey}"'
            )


@dataclass(frozen=True, kw_only=True)
class AccountClaims:
    """The claims of an account token that a configuration file cannot express."""

    name: str = ""
    tags: tuple[str, ...] = ()
    issuer: str = ""
    issued_s: int = 0
    expires_s: int = 0
    """0: never."""
    signing_keys: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """Further keys that sign its users; a template, if any, restricts those users."""
    revocations: Mapping[str, int] = field(default_factory=dict)
    """User → time; tokens issued to it up to that time are revoked; `*` is every user."""
    refuses_bearers: bool = False
    auth_callout: AuthCallout | None = None
    """The service that authenticates its users, if any."""


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
    msg_trace: MessageTracing | None = None
    claims: AccountClaims | None = None
    """The claims of its token, if it has one."""

    @property
    def label(self) -> str:
        """Its name for people."""
        return (self.claims.name if self.claims is not None else "") or self.name

    def export_of(self, taken: Import) -> Export | None:
        """Return the export that an import refers to."""
        return next((export for export in self.exports if export.offers(taken)), None)

    def export_for(self, taken: Import, account: str) -> Export | None:
        """Return the export that permits an import to `account`; None if there is none."""
        for export in self.exports:
            if export.offers(taken) and export.allows(account, taken):
                return export
        return None
