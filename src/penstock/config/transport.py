"""
How clients reach a server other than over plain TCP: the settings of TLS and of WebSocket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Literal
from urllib.parse import urlsplit

from penstock.config.setting import check_bounds, setting
from penstock.errors import ConfigError

TlsVersion = Literal["1.2", "1.3"]
HandshakeFirst = float | None
"""None: INFO comes first. A number: seconds to wait for a client that begins; 0 is for ever."""

FALLBACK_DELAY_S = 0.05
"""What `handshake_first: auto` waits before it sends INFO after all."""

CIPHER_SUITES = {
    "TLS_AES_128_GCM_SHA256": "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384": "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256": "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""The suites that are safe, by the names nats-server knows, and OpenSSL's names for them."""

CURVES = {
    "X25519": "X25519",
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
}
"""The curves, by the names nats-server knows, and OpenSSL's names for them."""

PINNED_CERT = re.compile("[0-9a-f]{64}")
RESERVED_HEADERS = ("host", "content-length", "connection", "upgrade", "nats-no-masking")


@dataclass(frozen=True, kw_only=True)
class CertificateFiles:
    """A certificate and its key."""

    cert_file: str
    key_file: str


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """One TLS listener: its certificate, and what it asks of its clients."""

    cert_file: str = setting(
        "",
        "The server's certificate, with those between it and its authority.",
        directive="tls.cert_file",
        flags=("tlscert",),
    )
    key_file: str = setting(
        "", "Private key of the certificate.", directive="tls.key_file", flags=("tlskey",)
    )
    certs: tuple[CertificateFiles, ...] = setting(
        (),
        "Several certificates, each with `cert_file` and `key_file`, in place of the one: a client "
        "is shown the first with the name it asks for, or else the first.",
        directive="tls.certs",
        aliases=("tls.certificates",),
    )
    ca_file: str | None = setting(
        None,
        "Authorities for the certificates of clients; those of the system if unset.",
        directive="tls.ca_file",
        flags=("tlscacert",),
    )
    verify: bool = setting(
        False,
        "Demand a valid certificate of every client.",
        directive="tls.verify",
        flags=("tlsverify",),
    )
    verify_and_map: bool = setting(
        False,
        "Demand a valid certificate, and take the user from it.",
        directive="tls.verify_and_map",
    )
    handshake_first: HandshakeFirst = setting(  # noqa: RUF009
        None,
        "Start TLS before INFO: `true`; `auto` or a duration waits so long for the client to "
        "begin, and then sends INFO.",
        directive="tls.handshake_first",
        aliases=("tls.first", "tls.immediate"),
    )
    timeout_s: float = setting(
        2.0, "Time the handshake may take.", directive="tls.timeout", positive=True
    )
    min_version: TlsVersion = setting(  # noqa: RUF009
        "1.2", "Oldest version of TLS spoken, `1.2` or `1.3`.", directive="tls.min_version"
    )
    cipher_suites: tuple[str, ...] = setting(
        (),
        "Cipher suites of TLS 1.2, by their Go names; those of TLS 1.3 are always on.",
        directive="tls.cipher_suites",
    )
    curve_preferences: tuple[str, ...] = setting(
        (),
        "Curves for the key exchange. One alone is used alone; several, in OpenSSL's order.",
        directive="tls.curve_preferences",
    )
    connection_rate_limit: int = setting(
        0,
        "Handshakes a second before clients are turned away; 0 is no limit.",
        directive="tls.connection_rate_limit",
    )
    pinned_certs: tuple[str, ...] = setting(
        (),
        "SHA-256 of the public keys of clients that may connect, in hexadecimal.",
        directive="tls.pinned_certs",
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.certs and (self.cert_file or self.key_file):
            raise ConfigError("`tls.certs` goes without `tls.cert_file` and `tls.key_file`")
        if not self.certs and not (self.cert_file and self.key_file):
            raise ConfigError("`tls` needs both a `tls.cert_file` and a `tls.key_file`")
        for name in self.cipher_suites:
            if name not in CIPHER_SUITES:
                known = ", ".join(CIPHER_SUITES)
                raise ConfigError(f'`tls.cipher_suites` has "{name}", which is none of {known}')
        for name in self.curve_preferences:
            if name not in CURVES:
                raise ConfigError(
                    f'`tls.curve_preferences` has "{name}", which is none of {", ".join(CURVES)}'
                )
        for digest in self.pinned_certs:
            if not PINNED_CERT.fullmatch(digest.lower()):
                raise ConfigError(f'`tls.pinned_certs` has "{digest}", which is no SHA-256 in hex')

    @property
    def certificates(self) -> tuple[CertificateFiles, ...]:
        """The certificates, of which the first is shown to who asks for none of them."""
        only = CertificateFiles(cert_file=self.cert_file, key_file=self.key_file)
        return self.certs or (only,)

    @property
    def verifies(self) -> bool:
        """Whether clients must show a certificate."""
        return self.verify or self.verify_and_map


@dataclass(frozen=True, kw_only=True)
class WebSocketConfig:
    """The listener for WebSocket clients, such as browsers."""

    host: str = setting(
        "0.0.0.0",
        "Address to listen on for WebSocket.",
        directive="websocket.host",
        aliases=("websocket.net",),
    )
    port: int = setting(
        MISSING, "Port for WebSocket; -1 picks a free one.", directive="websocket.port"
    )
    advertise: str | None = setting(
        None, "Address WebSocket clients are told of.", directive="websocket.advertise"
    )
    no_tls: bool = setting(
        False,
        "Serve without TLS, as behind a proxy that has it. One of this and `tls` is needed.",
        directive="websocket.no_tls",
    )
    compression: bool = setting(
        False,
        "Compress where the client can (permessage-deflate).",
        directive="websocket.compression",
        aliases=("websocket.compress",),
    )
    same_origin: bool = setting(
        False,
        "Take web pages of this very host and port only.",
        directive="websocket.same_origin",
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "Take web pages of these origins only.",
        directive="websocket.allowed_origins",
        aliases=(
            *("websocket.allowed_origin", "websocket.allow_origins", "websocket.allow_origin"),
            *("websocket.origins", "websocket.origin"),
        ),
    )
    handshake_timeout_s: float = setting(
        2.0,
        "Time a client has to ask for the upgrade.",
        directive="websocket.handshake_timeout",
        positive=True,
    )
    headers: Mapping[str, str] = setting(
        MISSING,
        "Headers added to the answer to an upgrade.",
        directive="websocket.headers",
        default_factory=dict,
    )
    jwt_cookie: str | None = setting(
        None, "Cookie that holds the user's JWT.", directive="websocket.jwt_cookie"
    )
    user_cookie: str | None = setting(
        None, "Cookie that holds the user's name.", directive="websocket.user_cookie"
    )
    pass_cookie: str | None = setting(
        None, "Cookie that holds the password.", directive="websocket.pass_cookie"
    )
    token_cookie: str | None = setting(
        None, "Cookie that holds the token.", directive="websocket.token_cookie"
    )
    no_auth_user: str | None = setting(
        None,
        "User that WebSocket clients without credentials become.",
        directive="websocket.no_auth_user",
    )
    username: str | None = setting(
        None,
        "The only user of WebSocket, in place of those of `authorization`.",
        directive="websocket.authorization.user",
        aliases=("websocket.authorization.username",),
    )
    password: str = setting(
        "",
        "Password of that user, plain or bcrypt.",
        directive="websocket.authorization.password",
        aliases=("websocket.authorization.pass",),
        secret=True,
    )
    token: str | None = setting(
        None,
        "Token that WebSocket clients must present, in place of users.",
        directive="websocket.authorization.token",
        secret=True,
    )
    auth_timeout_s: float = setting(
        0.0,
        "Time a WebSocket client has to authenticate; `authorization.timeout` if unset.",
        directive="websocket.authorization.timeout",
    )
    tls: TlsConfig | None = None

    def __post_init__(self) -> None:
        if not -1 <= self.port <= 65535:
            raise ConfigError(f"`websocket.port` must be between -1 and 65535: {self.port}")
        if self.handshake_timeout_s <= 0:
            raise ConfigError("`websocket.handshake_timeout` must be more than 0")
        if self.username is not None and self.token is not None:
            raise ConfigError("`websocket.authorization.token` goes without a `user`: choose one")
        if self.tls is None and not self.no_tls:
            raise ConfigError(
                "`websocket.port` needs a `tls` block, or `no_tls: true` to go without"
            )
        for origin in self.allowed_origins:
            if not origin_of(origin):
                raise ConfigError(
                    f'`websocket.allowed_origins` has "{origin}", which is not like '
                    '"https://example.com"'
                )
        for name in self.headers:
            if name.lower() in RESERVED_HEADERS or name.lower().startswith("sec-websocket-"):
                raise ConfigError(f'`websocket.headers` must not set "{name}"')

    @property
    def has_own_users(self) -> bool:
        """Whether its clients are known by a user or a token of this listener's own."""
        return self.username is not None or self.token is not None


def origin_of(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of a web page's origin; None if it is not one."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)
