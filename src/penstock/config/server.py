"""
Every setting and every limit, once.

The dataclasses below are the only place where a setting is defined. Its name in
a nats-server configuration file, its command-line flags and its line in the
reference are metadata of the field, so the file reader, the command line and
the documentation all derive from here. The type of a field says how its value is
written: a `float` is a duration in seconds, an `int` may be a size such as `64MB`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import cached_property
from typing import Literal

from penstock.config import accounttokens
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
from penstock.config.remotes import RemoteConfig, check_remotes
from penstock.config.setting import check_bounds, setting
from penstock.config.transport import TlsConfig, WebSocketConfig
from penstock.errors import ConfigError
from penstock.keys import nkeys, xkeys


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Every queue and buffer has a bound, and they are all here."""

    payload_bytes_max: int = setting(
        1024 * 1024,
        "Largest payload, headers included.",
        directive="max_payload",
        positive=True,
    )
    pending_bytes_max: int = setting(
        64 * 1024 * 1024,
        "Output waiting for one client before it is cut off as a slow consumer.",
        directive="max_pending",
        positive=True,
    )
    control_line_bytes_max: int = setting(
        4096, "Longest protocol line.", directive="max_control_line", positive=True
    )
    connections_max: int = setting(
        64 * 1024,
        "Client connections open at once; 0 is no limit.",
        directive="max_connections",
        aliases=("max_conn",),
    )
    subscriptions_max: int = setting(
        0,
        "Subscriptions of one connection; 0 is no limit.",
        directive="max_subscriptions",
        aliases=("max_subs",),
    )
    write_deadline_s: float = setting(
        10.0,
        "How long a write may stay stuck before the client is cut off.",
        directive="write_deadline",
        positive=True,
    )
    ping_interval_s: float = setting(
        120.0, "Time between server pings.", directive="ping_interval", positive=True
    )
    ping_max: int = setting(
        2,
        "Unanswered pings before a connection counts as stale.",
        directive="ping_max",
        positive=True,
    )
    auth_timeout_s: float = setting(
        2.0,
        "Time a client has to authenticate.",
        directive="authorization.timeout",
        positive=True,
    )
    lame_duck_duration_s: float = setting(
        120.0,
        "Time over which lame duck mode closes the clients: `30s` or more.",
        directive="lame_duck_duration",
    )
    lame_duck_grace_period_s: float = setting(
        10.0,
        "Time lame duck mode waits before it closes the first client.",
        directive="lame_duck_grace_period",
    )
    read_bytes_max: int = setting(
        128 * 1024, "Most bytes taken from one socket at a time.", positive=True
    )
    password_checks_max: int = setting(
        256,
        "Bcrypt passwords of new clients that may wait to be checked; more are turned away.",
        directive="max_password_checks",
        positive=True,
    )
    congested_bytes: int = setting(
        4 * 1024 * 1024,
        "Output waiting for one client at which those who publish to it are slowed.",
    )
    stuck_s: float = setting(
        0.1,
        "How long publishers wait at a time for a client with too much output waiting; one that"
        " takes next to nothing meanwhile no longer slows them.",
    )
    route_cache_size: int = setting(8192, "Subjects whose subscribers are remembered.")
    closed_connections_max: int = setting(
        10_000, "Closed connections remembered for /connz.", directive="max_closed_clients"
    )

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class Authorization:
    """Who may connect. Empty: everybody."""

    token: str | None = setting(
        None,
        "Token clients must present.",
        directive="authorization.token",
        flags=("auth",),
        secret=True,
    )
    users: tuple[User, ...] = setting(
        (),
        "Users: each has `user` and `password` (plain or bcrypt), or an `nkey`, and perhaps "
        "`permissions` and `allowed_connection_types`.",
        directive="authorization.users",
    )
    default_permissions: Permissions | None = setting(  # noqa: RUF009
        None,
        "Permissions of users that have none of their own.",
        directive="authorization.default_permissions",
        aliases=("authorization.default_permission", "authorization.permissions"),
    )
    no_auth_user: str | None = setting(
        None, "User that clients without credentials become.", directive="no_auth_user"
    )

    accounts: tuple[Account, ...] = setting(
        (),
        "Accounts by name: each has `users` and perhaps `default_permissions`, `limits`, "
        "`jetstream`, `exports`, `imports` and `mappings`.",
        directive="accounts",
    )
    mappings: tuple[SubjectMapping, ...] = setting(
        (),
        "What becomes of the subjects that clients in no account publish to.",
        directive="mappings",
        aliases=("maps",),
    )
    system_account: str = setting(
        SYSTEM,
        "Account whose users may ask and watch the server itself.",
        directive="system_account",
        aliases=("system",),
    )
    operators: tuple[OperatorToken, ...] = setting(
        (),
        "Tokens of the operators whose accounts are trusted, or files that hold one.",
        directive="operator",
        aliases=("operators", "roots", "root", "root_operator", "root_operators"),
    )
    trusted_keys: tuple[str, ...] = setting(
        (),
        "Public keys of operators whose accounts are trusted, in place of their tokens.",
        directive="trusted_keys",
        aliases=("trusted",),
    )
    resolver: Resolver | None = setting(  # noqa: RUF009
        None,
        "Where tokens of accounts are: `MEMORY`, that is in `resolver_preload`; or `type: full` "
        "and a `dir` to keep them in, and perhaps `allow_delete`, `hard_delete` and `limit`.",
        directive="resolver",
        aliases=("account_resolver", "accounts_resolver"),
    )
    resolver_preload: Mapping[str, str] = setting(
        MISSING,
        "Accounts of the operators: public key and token of each.",
        directive="resolver_preload",
        default_factory=dict,
    )

    default_sentinel: str | None = setting(
        None,
        "Token of the user that clients of an operator are who bring none: that of a bearer, whom "
        "an account's `auth_callout` then asks about.",
        directive="default_sentinel",
    )
    auth_callout: AuthCallout | None = setting(  # noqa: RUF009
        None,
        "A service that says who users are: `issuer`, `account`, `auth_users` and perhaps `xkey` "
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
        is_complete = self.resolver is None or not self.resolver.directory
        if is_complete and self.system_account_name not in known | {SYSTEM}:
            raise ConfigError(
                f'`system_account` "{self.system_account_name}" is not one of the accounts'
            )
        if self.no_auth_user is not None and self.no_auth_user not in names:
            raise ConfigError(f'`no_auth_user` "{self.no_auth_user}" is not one of the users')

    @property
    def required(self) -> bool:
        """Whether a client has to authenticate at all."""
        return self.token is not None or bool(self.all_users) or self.trusts_operators

    @property
    def trusts_operators(self) -> bool:
        """Whether users come with tokens that their accounts have signed."""
        return bool(self.operators or self.trusted_keys)

    @cached_property
    def all_accounts(self) -> tuple[Account, ...]:
        """The accounts of the configuration, or those that the operators have signed."""
        if not self.trusts_operators:
            return self.accounts
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
        """The account of the server itself; an operator may name it too."""
        if self.system_account == SYSTEM and self.trusts_operators:
            return self._trust.system_account or SYSTEM
        return self.system_account

    @cached_property
    def _trust(self) -> accounttokens.Trust:
        return accounttokens.read_operators(self.operators)

    def _check_operators(self) -> None:
        """Refuse what contradicts users that come with tokens."""
        nkeys.require_cryptography("an `operator`")
        if self.operators and self.trusted_keys:
            raise ConfigError("`operator` and `trusted_keys` say the same: choose one")
        if self.users or self.accounts or self.token is not None or self.no_auth_user:
            raise ConfigError(
                "`operator` goes with accounts and users that have tokens; "
                "remove `accounts`, `authorization` and `no_auth_user`"
            )
        if self.resolver is None:
            raise ConfigError("`operator` needs a `resolver`: write `resolver: MEMORY`")
        for key in self.trusted_keys:
            if not nkeys.is_public(key, nkeys.OPERATOR_PREFIX):
                raise ConfigError(f'`trusted_keys` has "{key}", not the public key of an operator')

    def _check_callout(self, callout: AuthCallout) -> None:
        nkeys.require_cryptography("`auth_callout`")
        if callout.xkey:
            xkeys.require_nacl()
        if self.trusts_operators:
            raise ConfigError(
                "`auth_callout` goes with users in this file; with an `operator`, "
                "the token of an account says whom to ask"
            )
        known = {GLOBAL, *(account.name for account in self.accounts)}
        for name in (callout.account, *callout.allowed_accounts):
            if name not in known:
                raise ConfigError(f'`auth_callout` names "{name}", which is no account')
        users = {user.id for user in self.all_users}
        for name in callout.auth_users:
            if name not in users:
                raise ConfigError(f'`auth_callout` has the auth user "{name}", which is no user')

    @property
    def may_ask(self) -> bool:
        """Whether a service may have to be asked who somebody is, by a server with a key."""
        return self.auth_callout is not None or self.trusts_operators

    @property
    def all_users(self) -> tuple[User, ...]:
        """The users of every account."""
        return self.users + tuple(user for account in self.accounts for user in account.users)

    def has_jetstream(self, name: str) -> bool:
        """Tell whether an account may have streams: without others, those who are in none do."""
        others = [each for each in self.all_accounts if each.name != self.system_account_name]
        if not others:
            return name == GLOBAL
        return any(each.name == name and each.jetstream is not None for each in others)

    def account_of(self, name: str) -> Account:
        """Return an account; those that every server has need not be configured."""
        for account in self.all_accounts:
            if account.name == name:
                return account
        return Account(name=name, mappings=self.mappings if name == GLOBAL else ())


@dataclass(frozen=True, kw_only=True)
class JetStreamConfig:
    """Where streams are kept, and how safely."""

    store_dir: str = setting(
        MISSING,
        "Directory of the streams; `$XDG_DATA_HOME/penstock/jetstream` if unset.",
        directive="jetstream.store_dir",
        aliases=("jetstream.storedir", "jetstream.store", "store_dir", "storedir"),
        flags=("sd", "store_dir"),
    )
    max_memory_bytes: int | None = setting(
        None,
        "What memory streams may hold together; no limit if unset.",
        directive="jetstream.max_mem",
        aliases=("jetstream.max_memory_store", "jetstream.max_mem_store"),
    )
    max_storage_bytes: int | None = setting(
        None,
        "What file streams may hold together; no limit if unset.",
        directive="jetstream.max_file",
        aliases=("jetstream.max_file_store",),
    )
    sync: float | Literal["always"] = setting(
        "always",
        "`always` acknowledges a message once it would survive a power cut; a duration syncs "
        "that often instead, as nats-server does.",
        directive="jetstream.sync_interval",
        aliases=("jetstream.sync",),
    )
    domain: str | None = setting(None, "JetStream domain.", directive="jetstream.domain")
    remotes: tuple[RemoteConfig, ...] = setting(
        (),
        "Other servers that streams may mirror and source from, as `external` with the API prefix "
        "`$JS.<name>.API`: each has `name` and `urls`, and perhaps `account`, `domain`, one of "
        "`user` and `password`, `token`, `nkey` or `credentials`, and `tls`. nats-server has leaf "
        "nodes in its place.",
        directive="jetstream.remotes",
    )
    index_bytes_max: int = setting(
        64 * 1024 * 1024,
        "Memory for finding messages in complete segments, per stream; what does not fit is read "
        "from disk again.",
        directive="jetstream.max_index",
        positive=True,
    )

    def __post_init__(self) -> None:
        if not self.store_dir:
            raise ConfigError("`jetstream.store_dir` is empty: name a directory")
        if self.sync != "always" and self.sync <= 0:
            raise ConfigError("`jetstream.sync_interval` must be `always` or more than 0")
        check_remotes(self.remotes, self.domain)
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Everything a server is told before it starts."""

    host: str = setting(
        "0.0.0.0",
        "Address to listen on.",
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
        None, "Address of the monitoring endpoints; `host` if unset.", directive="http_host"
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
    allow_non_tls: bool = setting(
        False, "Take clients without TLS beside those with it.", directive="allow_non_tls"
    )
    proxy_protocol: bool = setting(
        False,
        "Let a proxy say whom it speaks for, by the PROXY protocol. Whoever connects may say so: "
        "let only the proxy do that.",
        directive="proxy_protocol",
    )
    client_advertise: str | None = setting(
        None,
        "Address clients are told to reach this server at.",
        directive="client_advertise",
        flags=("client_advertise",),
    )
    no_advertise: bool = setting(
        False, "Tell clients no addresses.", directive="no_advertise", flags=("no_advertise",)
    )
    tags: tuple[str, ...] = setting((), "Labels shown in /varz.", directive="server_tags")
    metadata: Mapping[str, str] = setting(
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
        """Whether some listener takes users from their certificates."""
        of_websocket = self.websocket.tls if self.websocket is not None else None
        return any(tls is not None and tls.verify_and_map for tls in (self.tls, of_websocket))

    def __post_init__(self) -> None:
        for name in ("port", "http_port", "https_port"):
            port = getattr(self, name)
            if port is not None and not -1 <= port <= 65535:
                raise ConfigError(f"`{name}` must be between -1 and 65535: {port}")
        if self.https_port is not None and self.tls is None:
            raise ConfigError("`https_port` needs a `tls` block with a certificate")
        if self.http_port is not None and self.https_port is not None:
            raise ConfigError("`http_port` and `https_port` are both set: choose one")
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
                    f'"{remote.account}", which has no JetStream; name another with `account`'
                )


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """What the process around a server does: its log and the files that tell where it is."""

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
        "Log the time in UTC, not in local time.",
        directive="logtime_utc",
        flags=("logtime_utc",),
    )
    log_file: str | None = setting(
        None,
        "File to log to, not standard error.",
        directive="log_file",
        aliases=("logfile",),
        flags=("l", "log"),
    )
    log_file_bytes_max: int = setting(
        0,
        "Size at which the log file is set aside and a new one begun; 0 is no limit.",
        directive="log_size_limit",
        aliases=("logfile_size_limit",),
        flags=("log_size_limit",),
    )
    log_files_max: int = setting(
        0,
        "Log files kept, the current one included; 0 keeps all.",
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
        "Directory in which to write the addresses in use, as `<executable>_<pid>.ports`.",
        directive="ports_file_dir",
        flags=("ports_file_dir",),
    )

    def __post_init__(self) -> None:
        check_bounds(self)
