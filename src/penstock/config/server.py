"""
Every setting and every limit, declared once.

The dataclasses below are the only place where a setting is defined. Its name in a
nats-server configuration file, its command-line flags and its reference text are metadata
of the field, so the file reader, the command line and the documentation all derive from
here. The type of a field defines the form of its value: a `float` is a duration in seconds,
an `int` may be a size such as `64MB`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict

from penstock.config.accounts import (
    GLOBAL,
    SYSTEM,
    Account,
    AuthCallout,
    OperatorToken,
    Permissions,
    Resolver,
    SubjectMapping,
    User,
)
from penstock.config.frozen import dataclass
from penstock.config.jetstream import JetStreamConfig
from penstock.config.setting import check_bounds, setting
from penstock.config.transport import (
    DEFAULT_HOST,
    EVERY_HOST,
    LOOPBACK,
    TlsConfig,
    WebSocketConfig,
    listen_everywhere_if_empty,
)
from penstock.errors import ConfigError
from penstock.keys import nkeys, xkeys
from penstock.protocol.addresses import split_address

if TYPE_CHECKING:
    from penstock.config.accounttokens import Trust


@dataclass(frozen=True, kw_only=True)
class Limits:
    """All limits: every queue and buffer has one here."""

    max_payload: int = setting(
        1024 * 1024,
        "Maximum payload, headers included.",
        directive="max_payload",
        positive=True,
        size=True,
    )
    max_pending: int = setting(
        64 * 1024 * 1024,
        "Maximum pending output of a client; more makes it a slow consumer.",
        directive="max_pending",
        positive=True,
        size=True,
    )
    max_control_line: int = setting(
        4096,
        "Maximum length of a protocol line.",
        directive="max_control_line",
        positive=True,
        size=True,
    )
    max_connections: int = setting(
        64 * 1024,
        "Maximum client connections; 0 is no limit.",
        directive="max_connections",
        aliases=("max_conn",),
    )
    max_subscriptions: int = setting(
        0,
        "Maximum subscriptions per connection; 0 is no limit.",
        directive="max_subscriptions",
        aliases=("max_subs",),
    )
    write_deadline: float = setting(
        10.0,
        "Time a write may be stuck before the client is disconnected.",
        directive="write_deadline",
        positive=True,
    )
    ping_interval: float = setting(
        120.0, "Time between server pings.", directive="ping_interval", positive=True
    )
    ping_max: int = setting(
        2,
        "Unanswered pings before a connection is stale.",
        directive="ping_max",
        positive=True,
    )
    auth_timeout: float = setting(
        2.0,
        "Time a client has to authenticate.",
        directive="authorization.timeout",
        positive=True,
    )
    lame_duck_duration: float = setting(
        120.0,
        "Time over which lame duck mode disconnects the clients; at least `30s`.",
        directive="lame_duck_duration",
    )
    lame_duck_grace_period: float = setting(
        10.0,
        "Time before lame duck mode disconnects the first client.",
        directive="lame_duck_grace_period",
    )
    read_bytes_max: int = setting(
        128 * 1024, "Maximum bytes per socket read.", positive=True, size=True
    )
    max_password_checks: int = setting(
        256,
        "Maximum bcrypt passwords waiting to be checked; further clients are refused.",
        directive="max_password_checks",
        positive=True,
    )
    congested_bytes: int = setting(
        4 * 1024 * 1024,
        "Pending output of a client above which its publishers are slowed down.",
        size=True,
    )
    stuck_s: float = setting(
        0.1,
        "Time publishers wait for a client with too much pending output; a client that"
        " makes no progress stops slowing them down.",
    )
    route_cache_size: int = setting(8192, "Subjects with cached subscribers.")
    max_closed_clients: int = setting(
        10_000, "Closed connections kept for /connz.", directive="max_closed_clients"
    )

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Authorization:
    """The clients that may connect. Empty: all."""

    token: str | None = setting(
        None,
        "Token clients must present.",
        directive="authorization.token",
        flags=("auth",),
        secret=True,
    )
    users: tuple[User, ...] = setting(
        (),
        "Users: each has `user` and `password` (plain or bcrypt), or an `nkey`; optional: "
        "`permissions` and `allowed_connection_types`.",
        directive="authorization.users",
    )
    default_permissions: Permissions | None = setting(
        None,
        "Permissions of users without their own.",
        directive="authorization.default_permissions",
        aliases=("authorization.default_permission", "authorization.permissions"),
    )
    no_auth_user: str | None = setting(
        None, "User for clients without credentials.", directive="no_auth_user"
    )

    accounts: tuple[Account, ...] = setting(
        (),
        "Accounts by name: each has `users`; optional: `default_permissions`, `limits`, "
        "`jetstream`, `exports`, `imports` and `mappings`.",
        directive="accounts",
    )
    mappings: tuple[SubjectMapping, ...] = setting(
        (),
        "Mappings of subjects published by clients without an account.",
        directive="mappings",
        aliases=("maps",),
    )
    system_account: str = setting(
        SYSTEM,
        "Account whose users may monitor and control the server.",
        directive="system_account",
        aliases=("system",),
    )
    operators: tuple[OperatorToken, ...] = setting(
        (),
        "Tokens of trusted operators, or files with one.",
        directive="operator",
        aliases=("operators", "roots", "root", "root_operator", "root_operators"),
    )
    trusted_keys: tuple[str, ...] = setting(
        (),
        "Public keys of trusted operators, instead of their tokens.",
        directive="trusted_keys",
        aliases=("trusted",),
    )
    resolver: Resolver | None = setting(
        None,
        "Source of account tokens: `MEMORY`, that is `resolver_preload`; `URL(http://…)`, "
        "a server that has them; or `type: full` with a `dir` to store them, optionally "
        "`allow_delete`, `hard_delete` and `limit`; or `type: cache` with a `dir` and a `ttl`.",
        directive="resolver",
        aliases=("account_resolver", "accounts_resolver"),
    )
    resolver_preload: Mapping[str, str] = setting(
        MISSING,
        "Accounts of the operators: each with public key and token.",
        directive="resolver_preload",
        default_factory=dict,
    )

    default_sentinel: str | None = setting(
        None,
        "Bearer token for clients of an operator that bring no token; an account's "
        "`auth_callout` then decides about them.",
        directive="default_sentinel",
    )
    auth_callout: AuthCallout | None = setting(
        None,
        "Service that authenticates users: `issuer`, `account`, `auth_users`; optional: `xkey` "
        "and `allowed_accounts`.",
        directive="authorization.auth_callout",
        aliases=("authorization.auth_hook",),
    )

    def __post_init__(self) -> None:
        if self.trusts_operators:
            self._check_operators()
        if self.auth_callout is not None:
            self._check_callout(self.auth_callout)
        if self.token is not None and self.all_users:
            raise ConfigError("`authorization` has both a `token` and users: choose one")
        names = set()
        for user in self.all_users:
            if user.id in names:
                raise ConfigError(f'`authorization` has more than one user "{user.id}"')
            names.add(user.id)
        known = {account.name for account in self.all_accounts}
        is_complete = self.resolver is None or not self.resolver.is_elsewhere
        if is_complete and self.system_account_name not in known | {SYSTEM}:
            raise ConfigError(
                f'`system_account` "{self.system_account_name}" is not one of the accounts'
            )
        if self.no_auth_user is not None and self.no_auth_user not in names:
            raise ConfigError(f'`no_auth_user` "{self.no_auth_user}" is not one of the users')

    @property
    def required(self) -> bool:
        """Whether clients have to authenticate."""
        return self.token is not None or bool(self.all_users) or self.trusts_operators

    @property
    def trusts_operators(self) -> bool:
        """Whether users bring tokens signed by their accounts."""
        return bool(self.operators or self.trusted_keys)

    @cached_property
    def all_accounts(self) -> tuple[Account, ...]:
        """The accounts of the configuration, or those that the operators signed."""
        if not self.trusts_operators:
            return self.accounts
        from penstock.config import accounttokens

        return accounttokens.read_accounts(self.resolver_preload, self.operator_keys)

    @property
    def operator_keys(self) -> frozenset[str]:
        """Keys that sign accounts."""
        return self._trust.keys | frozenset(self.trusted_keys)

    @property
    def strict_keys(self) -> frozenset[str]:
        """Keys of operators whose accounts sign users with signing keys only."""
        return self._trust.strict_keys

    @property
    def system_account_name(self) -> str:
        """The name of the system account; an operator may set it too."""
        if self.system_account == SYSTEM and self.trusts_operators:
            return self._trust.system_account or SYSTEM
        return self.system_account

    @cached_property
    def _trust(self) -> Trust:
        from penstock.config import accounttokens

        return accounttokens.read_operators(self.operators)

    def _check_operators(self) -> None:
        """Refuse settings that contradict users with tokens."""
        nkeys.require_cryptography("an `operator`")
        if self.operators and self.trusted_keys:
            raise ConfigError("`operator` and `trusted_keys` are both set: choose one")
        if self.users or self.accounts or self.token is not None or self.no_auth_user:
            raise ConfigError(
                "`operator` needs accounts and users with tokens; "
                "remove `accounts`, `authorization` and `no_auth_user`"
            )
        if self.resolver is None:
            if not self._trust.account_server:
                raise ConfigError("`operator` needs a `resolver`; hint: `resolver: MEMORY`")
            # `nsc push` sends the tokens to the same URL.
            url = self._trust.account_server.removesuffix("/") + "/accounts"
            object.__setattr__(self, "resolver", Resolver(url=url))
        for key in self.trusted_keys:
            if not nkeys.is_public(key, nkeys.OPERATOR_PREFIX):
                raise ConfigError(
                    f'`trusted_keys` has "{key}", which is not the public key of an operator'
                )

    def _check_callout(self, callout: AuthCallout) -> None:
        nkeys.require_cryptography("`auth_callout`")
        if callout.xkey:
            xkeys.require_nacl()
        if self.trusts_operators:
            raise ConfigError(
                "`auth_callout` needs users in this file; with an `operator`, "
                "set the callout in the account's token"
            )
        known = {GLOBAL, *(account.name for account in self.accounts)}
        for name in (callout.account, *callout.allowed_accounts):
            if name not in known:
                raise ConfigError(f'`auth_callout` names an unknown account "{name}"')
        users = {user.id for user in self.all_users}
        for name in callout.auth_users:
            if name not in users:
                raise ConfigError(f'`auth_callout` has an unknown auth user "{name}"')

    @property
    def may_ask(self) -> bool:
        """Whether the server may have to ask the auth callout, for which it needs a key."""
        return self.auth_callout is not None or self.trusts_operators

    @property
    def all_users(self) -> tuple[User, ...]:
        """The users of all accounts."""
        return self.users + tuple(user for account in self.accounts for user in account.users)

    def has_jetstream(self, name: str) -> bool:
        """Tell whether an account may have streams. Without `accounts`, the global account has."""
        others = [each for each in self.all_accounts if each.name != self.system_account_name]
        if not others:
            return name == GLOBAL
        return any(each.name == name and each.jetstream is not None for each in others)

    def account_of(self, name: str) -> Account:
        """Return an account; the built-in ones need no configuration."""
        for account in self.all_accounts:
            if account.name == name:
                return account
        return Account(name=name, mappings=self.mappings if name == GLOBAL else ())


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The configuration of a server."""

    host: str = setting(
        DEFAULT_HOST,
        "Address to listen on; `0.0.0.0` is every address, including IPv6.",
        directive="host",
        aliases=("net",),
        flags=("a", "addr", "net"),
    )
    port: int = setting(
        4222, "Port for clients; -1 picks a free one.", directive="port", flags=("p", "port")
    )
    server_name: str | None = setting(
        None, "Name of the server.", directive="server_name", flags=("n", "name", "server_name")
    )
    http_host: str | None = setting(
        None,
        "Address of the monitoring endpoints (default: `host`, but 127.0.0.1 and ::1 where that is "
        "every address).",
        directive="http_host",
    )
    http_port: int | None = setting(
        None,
        "Port of the monitoring endpoints; -1 picks a free one.",
        directive="http_port",
        aliases=("monitor_port",),
        flags=("m", "http_port"),
    )
    https_port: int | None = setting(
        None,
        "Port of the monitoring endpoints over TLS, with the certificate of `tls`.",
        directive="https_port",
        flags=("ms", "https_port"),
    )
    monitor_actions: bool = setting(
        False,
        "Let users of the server sign in to the console, to read messages and to act there with "
        "their permissions.",
        directive="monitor.actions",
    )
    allow_non_tls: bool = setting(
        False, "Accept clients with and without TLS.", directive="allow_non_tls"
    )
    proxy_protocol: bool = setting(
        False,
        "Accept client addresses by the PROXY protocol. Any client can then claim an address: "
        "let only the proxy connect.",
        directive="proxy_protocol",
    )
    client_advertise: str | None = setting(
        None,
        "Address of this server that clients are told.",
        directive="client_advertise",
        flags=("client_advertise",),
    )
    no_advertise: bool = setting(
        False, "Tell clients no addresses.", directive="no_advertise", flags=("no_advertise",)
    )
    server_tags: tuple[str, ...] = setting((), "Labels shown in /varz.", directive="server_tags")
    server_metadata: Mapping[str, str] = setting(
        MISSING,
        "Names and values shown in /varz.",
        directive="server_metadata",
        default_factory=dict,
    )
    authorization: Authorization = Authorization()
    limits: Limits = Limits()
    jetstream: JetStreamConfig | None = None
    tls: TlsConfig | None = None
    websocket: WebSocketConfig | None = None

    @property
    def maps_certificates(self) -> bool:
        """Whether any listener takes users from client certificates."""
        of_websocket = self.websocket.tls if self.websocket is not None else None
        return any(tls is not None and tls.verify_and_map for tls in (self.tls, of_websocket))

    @property
    def monitor_host(self) -> str:
        """The address of the monitoring endpoints. They have no login: not every address."""
        if self.http_host is not None:
            return self.http_host
        return LOOPBACK if self.host in EVERY_HOST else self.host

    def __post_init__(self) -> None:
        listen_everywhere_if_empty(self)
        for name in ("port", "http_port", "https_port"):
            port = getattr(self, name)
            if port is not None and not -1 <= port <= 65535:
                raise ConfigError(f"`{name}` must be between -1 and 65535: {port}")
        has_certificate = self.tls is not None and bool(self.tls.certificates)
        if self.tls is not None and not has_certificate and not self.allow_non_tls:
            raise ConfigError(
                "`tls` needs both `tls.cert_file` and `tls.key_file`; behind a proxy that "
                "ends TLS, use `allow_non_tls: true` instead"
            )
        if self.https_port is not None and not has_certificate:
            raise ConfigError("`https_port` needs a `tls` block with a certificate")
        if self.http_port is not None and self.https_port is not None:
            raise ConfigError("`http_port` and `https_port` are both set: choose one")
        if self.monitor_actions:
            self._check_actions()
        try:
            split_address(self.client_advertise or "")
        except ValueError as error:
            raise ConfigError(f'`client_advertise` "{self.client_advertise}": {error}') from None
        if self.server_name is not None and " " in self.server_name:
            raise ConfigError(f'`server_name` must not contain spaces: "{self.server_name}"')
        if not isinstance(self.jetstream, JetStreamConfig | None):
            raise ConfigError(
                f"`jetstream` must be a JetStreamConfig, not {self.jetstream!r}; hint: "
                "`JetStreamConfig(store_dir=…)`, or `penstock.serve(jetstream=True)`"
            )
        for remote in self.jetstream.remotes if self.jetstream is not None else ():
            if not self.authorization.has_jetstream(remote.account):
                raise ConfigError(
                    f'`jetstream.remotes`: "{remote.name}" is for the account '
                    f'"{remote.account}", which has no JetStream; hint: name another with `account`'
                )

    def _check_actions(self) -> None:
        """Refuse a console that everybody could sign in to, or only without their TLS."""
        if self.http_port is None and self.https_port is None:
            raise ConfigError("`monitor.actions` needs the monitoring; hint: `http_port: 8222`")
        if not self.authorization.required:
            raise ConfigError(
                "`monitor.actions` needs users who sign in; hint: `authorization { users: [ … ] }`"
            )
        if self.tls is not None and self.http_port is not None and not self.allow_non_tls:
            raise ConfigError(
                "`monitor.actions` would take passwords without TLS; hint: `https_port` in place "
                "of `http_port`"
            )


class ServerSettings(TypedDict, total=False):
    """The fields of `ServerConfig` as keywords, so that type checkers and editors know them."""

    host: str
    port: int
    server_name: str | None
    http_host: str | None
    http_port: int | None
    https_port: int | None
    monitor_actions: bool
    allow_non_tls: bool
    proxy_protocol: bool
    client_advertise: str | None
    no_advertise: bool
    server_tags: tuple[str, ...]
    server_metadata: Mapping[str, str]
    authorization: Authorization
    limits: Limits
    jetstream: JetStreamConfig | bool | None
    tls: TlsConfig | None
    websocket: WebSocketConfig | None


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """Settings of the process around a server: its log, its pid file and its ports file."""

    debug: bool = setting(False, "Log debug lines.", directive="debug", flags=("D", "debug"))
    trace: bool = setting(
        False,
        "Log the protocol of every client.",
        directive="trace",
        aliases=("trace_verbose",),
        flags=("V", "VV", "trace"),
    )
    logtime: bool = setting(
        True, "Put the time on every log line.", directive="logtime", flags=("T", "logtime")
    )
    logtime_utc: bool = setting(
        False,
        "Log the time in UTC instead of local time.",
        directive="logtime_utc",
        flags=("logtime_utc",),
    )
    log_file: str | None = setting(
        None,
        "File to log to instead of standard error.",
        directive="log_file",
        aliases=("logfile",),
        flags=("l", "log"),
    )
    log_size_limit: int = setting(
        0,
        "Size at which the log file is rotated; 0 is no limit.",
        directive="log_size_limit",
        aliases=("logfile_size_limit",),
        flags=("log_size_limit",),
        size=True,
    )
    log_max_num: int = setting(
        0,
        "Log files to keep, including the current one; 0 keeps all.",
        directive="log_max_num",
        aliases=("logfile_max_num",),
    )
    pid_file: str | None = setting(
        None,
        "File to write the process id to.",
        directive="pid_file",
        aliases=("pidfile",),
        flags=("P", "pid"),
    )
    ports_file_dir: str | None = setting(
        None,
        "Directory for the file of addresses in use, `<executable>_<pid>.ports`.",
        directive="ports_file_dir",
        flags=("ports_file_dir",),
    )

    def __post_init__(self) -> None:
        check_bounds(self)
