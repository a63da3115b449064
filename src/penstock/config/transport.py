"""Settings of transports other than plain TCP: TLS and WebSocket."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Literal, Protocol

from penstock.config.frozen import dataclass
from penstock.config.setting import check_bounds, setting
from penstock.errors import ConfigError

TlsVersion = Literal["1.2", "1.3"]
HandshakeFirst = float | None
"""None: INFO comes first. A number: seconds to wait for a client to start TLS; 0 is forever."""

FALLBACK_DELAY_S = 0.05
"""How long `handshake_first: auto` waits before it sends INFO after all."""

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
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}
"""The secure suites, by nats-server's names, and OpenSSL's names for them."""

INSECURE_CIPHER_SUITES = {
    "TLS_RSA_WITH_RC4_128_SHA": "RC4-SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA": "DES-CBC3-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA": "ECDHE-ECDSA-RC4-SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA": "ECDHE-RSA-RC4-SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA": "ECDHE-RSA-DES-CBC3-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
}
"""The insecure suites, for old clients. OpenSSL may lack some of them."""
ALL_CIPHER_SUITES = CIPHER_SUITES | INSECURE_CIPHER_SUITES

CURVES = {
    "X25519": "X25519",
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
}
"""The curves, by nats-server's names, and OpenSSL's names for them."""

PINNED_CERT = re.compile("[0-9a-f]{64}")
DEFAULT_HOST = "0.0.0.0"
"""Every address of the machine, in IPv4 and IPv6."""
EVERY_HOST = (DEFAULT_HOST, "::")
LOOPBACK = "127.0.0.1"
RESERVED_HEADERS = ("host", "content-length", "connection", "upgrade", "nats-no-masking")


@dataclass(frozen=True, kw_only=True)
class CertificateFiles:
    """A certificate and its key."""

    cert_file: str
    key_file: str


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """One TLS listener: its certificate, and its requirements for clients."""

    cert_file: str = setting(
        "",
        "The server's certificate, with intermediate certificates.",
        directive="tls.cert_file",
        flags=("tlscert",),
    )
    key_file: str = setting(
        "", "Private key of the certificate.", directive="tls.key_file", flags=("tlskey",)
    )
    certs: tuple[CertificateFiles, ...] = setting(
        (),
        "Several certificates, each with `cert_file` and `key_file`, instead of one: a client "
        "gets the first that matches the name it asks for, otherwise the first.",
        directive="tls.certs",
        aliases=("tls.certificates",),
    )
    ca_file: str | None = setting(
        None,
        "Authorities of client certificates (default: those of the system).",
        directive="tls.ca_file",
        flags=("tlscacert",),
    )
    verify: bool = setting(
        False,
        "Require a valid certificate from every client.",
        directive="tls.verify",
        flags=("tlsverify",),
    )
    verify_and_map: bool = setting(
        False,
        "Require a valid certificate, and take the user from it.",
        directive="tls.verify_and_map",
    )
    handshake_first: HandshakeFirst = setting(
        None,
        "Start TLS before INFO: `true`; `auto` or a duration waits that long for the client to "
        "begin, and then sends INFO.",
        directive="tls.handshake_first",
        aliases=("tls.first", "tls.immediate"),
    )
    timeout: float = setting(
        2.0, "Timeout of the handshake.", directive="tls.timeout", positive=True
    )
    min_version: TlsVersion = setting(
        "1.2", "Minimum TLS version, `1.2` or `1.3`.", directive="tls.min_version"
    )
    cipher_suites: tuple[str, ...] = setting(
        (),
        "Cipher suites of TLS 1.2, by their Go names; those of TLS 1.3 are always enabled.",
        directive="tls.cipher_suites",
    )
    allow_insecure_cipher_suites: bool = setting(
        False,
        "Allow insecure `cipher_suites`.",
        directive="tls.allow_insecure_cipher_suites",
    )
    curve_preferences: tuple[str, ...] = setting(
        (),
        "Curves for the key exchange. Several are tried in OpenSSL's order.",
        directive="tls.curve_preferences",
    )
    connection_rate_limit: int = setting(
        0,
        "Maximum handshakes per second; further clients are refused; 0 is no limit.",
        directive="tls.connection_rate_limit",
    )
    pinned_certs: tuple[str, ...] = setting(
        (),
        "Hexadecimal SHA-256 of the public keys of allowed clients.",
        directive="tls.pinned_certs",
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.certs and (self.cert_file or self.key_file):
            raise ConfigError("`tls.certs` cannot be used with `tls.cert_file` and `tls.key_file`")
        if bool(self.cert_file) != bool(self.key_file):
            raise ConfigError("`tls` needs both `tls.cert_file` and `tls.key_file`")
        for name in self.cipher_suites:
            self._check_suite(name)
        for name in self.curve_preferences:
            if name not in CURVES:
                raise ConfigError(
                    f'`tls.curve_preferences` has "{name}", which is not one of {", ".join(CURVES)}'
                )
        for digest in self.pinned_certs:
            if not PINNED_CERT.fullmatch(digest.lower()):
                raise ConfigError(
                    f'`tls.pinned_certs` has "{digest}", which is not a hexadecimal SHA-256'
                )

    def _check_suite(self, name: str) -> None:
        if name in CIPHER_SUITES:
            return
        if name not in INSECURE_CIPHER_SUITES:
            known = ", ".join(CIPHER_SUITES)
            raise ConfigError(f'`tls.cipher_suites` has "{name}", which is not one of {known}')
        if not self.allow_insecure_cipher_suites:
            raise ConfigError(
                f'`tls.cipher_suites` has "{name}", which is insecure: remove it, or set '
                "`allow_insecure_cipher_suites: true`"
            )

    @property
    def certificates(self) -> tuple[CertificateFiles, ...]:
        """The certificates; clients that ask for none of them get the first."""
        if self.certs or not self.cert_file:
            return self.certs
        return (CertificateFiles(cert_file=self.cert_file, key_file=self.key_file),)

    @property
    def verifies(self) -> bool:
        """Whether clients must show a certificate."""
        return self.verify or self.verify_and_map


class Listening(Protocol):
    """Settings of something that listens."""

    @property
    def host(self) -> str:
        """The address it listens on."""


@dataclass(frozen=True, kw_only=True)
class WebSocketConfig:
    """The listener for WebSocket clients, such as browsers."""

    host: str = setting(
        DEFAULT_HOST,
        "Address to listen on for WebSocket; `0.0.0.0` is every address, including IPv6.",
        directive="websocket.host",
        aliases=("websocket.net",),
    )
    port: int = setting(
        MISSING, "Port for WebSocket; -1 picks a free one.", directive="websocket.port"
    )
    advertise: str | None = setting(
        None, "Address that WebSocket clients are told.", directive="websocket.advertise"
    )
    no_tls: bool = setting(
        False,
        "Serve without TLS, as behind a proxy with TLS. Either this or `tls` is required.",
        directive="websocket.no_tls",
    )
    compression: bool = setting(
        False,
        "Compress if the client supports it (permessage-deflate).",
        directive="websocket.compression",
        aliases=("websocket.compress",),
    )
    same_origin: bool = setting(
        False,
        "Accept only web pages from the same host and port.",
        directive="websocket.same_origin",
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "Accept only web pages from these origins.",
        directive="websocket.allowed_origins",
        aliases=(
            *("websocket.allowed_origin", "websocket.allow_origins", "websocket.allow_origin"),
            *("websocket.origins", "websocket.origin"),
        ),
    )
    handshake_timeout: float = setting(
        2.0,
        "Time a client has to request the upgrade.",
        directive="websocket.handshake_timeout",
        positive=True,
    )
    headers: Mapping[str, str] = setting(
        MISSING,
        "Headers added to the upgrade response.",
        directive="websocket.headers",
        default_factory=dict,
    )
    jwt_cookie: str | None = setting(
        None, "Cookie with the user's JWT.", directive="websocket.jwt_cookie"
    )
    user_cookie: str | None = setting(
        None, "Cookie with the user's name.", directive="websocket.user_cookie"
    )
    pass_cookie: str | None = setting(
        None, "Cookie with the password.", directive="websocket.pass_cookie"
    )
    token_cookie: str | None = setting(
        None, "Cookie with the token.", directive="websocket.token_cookie"
    )
    no_auth_user: str | None = setting(
        None,
        "User for WebSocket clients without credentials.",
        directive="websocket.no_auth_user",
    )
    username: str | None = setting(
        None,
        "The only WebSocket user, instead of those of `authorization`.",
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
        "Token that WebSocket clients must present, instead of users.",
        directive="websocket.authorization.token",
        secret=True,
    )
    auth_timeout: float = setting(
        0.0,
        "Time a WebSocket client has to authenticate (default: `authorization.timeout`).",
        directive="websocket.authorization.timeout",
    )
    tls: TlsConfig | None = None

    def __post_init__(self) -> None:
        listen_everywhere_if_empty(self)
        if not -1 <= self.port <= 65535:
            raise ConfigError(f"`websocket.port` must be between -1 and 65535: {self.port}")
        if self.handshake_timeout <= 0:
            raise ConfigError("`websocket.handshake_timeout` must be more than 0")
        if self.username is not None and self.token is not None:
            raise ConfigError(
                "`websocket.authorization.token` cannot be used with a `user`: choose one"
            )
        if self.tls is not None and not self.tls.certificates:
            raise ConfigError(
                "`websocket.tls` needs both `websocket.tls.cert_file` and `websocket.tls.key_file`"
            )
        if self.tls is None and not self.no_tls:
            raise ConfigError("`websocket.port` needs a `tls` block, or `no_tls: true`")
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
        """Whether its clients authenticate with a user or a token of this listener."""
        return self.username is not None or self.token is not None


def listen_everywhere_if_empty(config: Listening) -> None:
    """Replace an empty host by every address, while the settings are created."""
    if not config.host:
        object.__setattr__(config, "host", DEFAULT_HOST)


def origin_of(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of a web page's origin; None if it is not one."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)
