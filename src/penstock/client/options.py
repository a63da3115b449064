"""
Every setting of the client, declared once.

`connect(servers, **settings)` takes these names. Each is checked here, so that a wrong one
fails before a socket is opened.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypedDict

from penstock.config.setting import setting
from penstock.errors import ConfigError
from penstock.protocol import wellknown

ErrorListener: TypeAlias = Callable[[Exception], None]
Listener: TypeAlias = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Servers, identity, timing, and the bound of every queue and buffer."""

    servers: tuple[str, ...] = setting(
        ("nats://127.0.0.1:4222",), "Servers to connect to.", secret=True
    )
    randomize_servers: bool = setting(True, "Spread clients over the servers.")
    name: str = setting("", "Name of this client, shown by the server's monitoring.")
    echo: bool = setting(True, "Receive one's own messages.")
    pedantic: bool = setting(False, "Have the server check subjects strictly.")
    inbox_prefix: str = setting(wellknown.INBOX, "Prefix of reply subjects.")

    user: str | None = setting(None, "User name.")
    password: str | None = field(
        default=None, repr=False, metadata={"doc": "Password of the user."}
    )
    token: str | None = field(default=None, repr=False, metadata={"doc": "Authentication token."})
    nkey_seed: str | None = field(
        default=None, repr=False, metadata={"doc": "Seed of an nkey user, `SU…`."}
    )
    credentials: str | Path | None = field(
        default=None,
        metadata={"doc": "Path of a creds file: a JWT and a seed. Read again at every connect."},
    )

    tls: ssl.SSLContext | None = field(
        default=None,
        metadata={"doc": "TLS context; the default context if the server requires TLS."},
    )
    tls_hostname: str | None = setting(None, "Name that the server's certificate must match.")
    tls_handshake_first: bool = setting(False, "Start TLS before the server's INFO.")

    connect_timeout_s: float = setting(2.0, "Time to reach one server, handshakes included.")
    reconnect: bool = setting(True, "Connect again when the connection is lost.")
    reconnect_attempts_max: int = setting(
        60, "Consecutive failures before a server is dropped; -1 never drops it."
    )
    reconnect_wait_s: float = setting(0.05, "Initial wait between rounds over all servers.")
    reconnect_wait_s_max: float = setting(
        4.0, "Maximum wait; it doubles up to this, half is jitter."
    )
    ping_interval_s: float = setting(120.0, "Time between two pings.")
    pings_outstanding_max: int = setting(2, "Unanswered pings that make a connection stale.")
    request_timeout_s: float = setting(5.0, "Timeout of a reply.")
    drain_timeout_s: float = setting(30.0, "Timeout of the subscriptions in `drain`.")

    flush_bytes: int = setting(128 * 1024, "Unsent bytes written without waiting.")
    pending_bytes_max: int = setting(
        8 * 1024 * 1024,
        "Unsent bytes above which `await publish` waits, also while reconnecting.",
    )
    message_bytes_max: int = setting(
        64 * 1024 * 1024, "Largest message accepted; a larger one closes the connection."
    )
    queue_messages_max: int = setting(512 * 1024, "Messages waiting in one subscription.")
    queue_bytes_max: int = setting(128 * 1024 * 1024, "Bytes waiting in one subscription.")

    on_error: ErrorListener | None = field(
        default=None, metadata={"doc": "Called with every asynchronous error."}
    )
    on_disconnected: ErrorListener | None = field(
        default=None, metadata={"doc": "Called when the connection is lost."}
    )
    on_reconnected: Listener | None = field(
        default=None, metadata={"doc": "Called when the connection is back."}
    )
    on_closed: Listener | None = field(
        default=None, metadata={"doc": "Called once the client is closed for good."}
    )
    on_lame_duck: Listener | None = field(
        default=None, metadata={"doc": "Called when the server enters lame duck mode."}
    )
    on_discovered: Listener | None = field(
        default=None, metadata={"doc": "Called when new servers are discovered."}
    )

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("`servers` is empty; hint: nats://127.0.0.1:4222")
        self._check_positive()
        self._check_identity()

    def _check_positive(self) -> None:
        for name, value in vars(self).items():
            if name.endswith(("_s", "_bytes", "_max")) and name != "reconnect_attempts_max":
                if not value > 0:
                    raise ConfigError(f"`{name}` must be positive: {value}")

    def _check_identity(self) -> None:
        kinds = ("user", "token", "nkey_seed", "credentials")
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"only one of {', '.join(f'`{name}`' for name in given)} can be used")
        if self.password is not None and self.user is None:
            raise ConfigError("`password` needs a `user`")
        if self.credentials is not None:
            _check_path("credentials", self.credentials)


class ClientSettings(TypedDict, total=False):
    """The fields of `ClientOptions` as keywords of `connect`, so that type checkers know them."""

    randomize_servers: bool
    name: str
    echo: bool
    pedantic: bool
    inbox_prefix: str
    user: str | None
    password: str | None
    token: str | None
    nkey_seed: str | None
    credentials: str | Path | None
    tls: ssl.SSLContext | None
    tls_hostname: str | None
    tls_handshake_first: bool
    connect_timeout_s: float
    reconnect: bool
    reconnect_attempts_max: int
    reconnect_wait_s: float
    reconnect_wait_s_max: float
    ping_interval_s: float
    pings_outstanding_max: int
    request_timeout_s: float
    drain_timeout_s: float
    flush_bytes: int
    pending_bytes_max: int
    message_bytes_max: int
    queue_messages_max: int
    queue_bytes_max: int
    on_error: ErrorListener | None
    on_disconnected: ErrorListener | None
    on_reconnected: Listener | None
    on_closed: Listener | None
    on_lame_duck: Listener | None
    on_discovered: Listener | None


def _check_path(name: str, path: str | Path) -> None:
    """Raise for what a file holds in the place of its path, without showing it."""
    if "-----BEGIN" in str(path) or "\n" in str(path):
        raise ConfigError(f"`{name}` must be the path of a file, and not what the file holds")


def tls_context(
    authorities: str | None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """Return a TLS context from the paths of a CA, our certificate and its key."""
    for name, path in {
        "tls_ca": authorities,
        "tls_certificate": certificate,
        "tls_key": key,
    }.items():
        if path is not None:
            _check_path(name, path)
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"`{name}`: there is no file {path}")
    try:
        context = ssl.create_default_context(cafile=authorities)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ConfigError(f"`tls_ca`, `tls_certificate`, `tls_key`: {error}") from None
    return context
