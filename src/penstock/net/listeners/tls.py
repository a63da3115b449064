"""
TLS for the reactor: a context from the settings, and a socket that encrypts.

The socket behaves like a plain one for `Connection`: it takes as much as it can at once and
raises `BlockingIOError` when that is nothing. OpenSSL requires that unwritten data is
offered again unchanged. It is: unsent data stays at the front of the session's outbox.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from penstock.config.transport import ALL_CIPHER_SUITES, CURVES, CertificateFiles, TlsConfig
from penstock.core.identity.tls import Certificate, TlsState
from penstock.errors import ConfigError
from penstock.keys import nkeys

RECORD_BYTES = 16 * 1024
"""The maximum size of a TLS record. A smaller read would leave a rest that epoll cannot see."""

Chooser = Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]
WANTS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
SUITE_NAMES = {theirs: name for name, theirs in ALL_CIPHER_SUITES.items()}
ATTRIBUTES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "postalCode": "POSTALCODE",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""The short names of the attributes in a distinguished name."""


class TlsSocket:
    """A socket after its handshake."""

    __slots__ = ("_sock",)

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._sock.fileno()

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Fill the buffer with received data, a record at a time; return 0 at the end."""
        view = memoryview(buffer)
        size = 0
        while not size or len(buffer) - size >= RECORD_BYTES:
            try:
                got = self._sock.recv_into(view[size:])
            except WANTS:
                if not size:
                    raise BlockingIOError from None
                break
            if not got:
                # The end shows again at the next read.
                break
            size += got
        return size

    def send(self, data: Any) -> int:
        """Send as much as the kernel takes."""
        view = memoryview(data)
        sent = 0
        while sent < len(view):
            try:
                sent += self._sock.send(view[sent:])
            except WANTS:
                if not sent:
                    raise BlockingIOError from None
                break
        return sent

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        """Send buffers joined together: TLS makes records of them anyway."""
        return self.send(b"".join(buffers))

    def close(self) -> None:
        """Send TLS's close message, and close."""
        try:
            self._sock.unwrap()
        except (OSError, ValueError):
            # Do not wait for the peer's close message.
            pass
        self._sock.close()


def server_context(config: TlsConfig) -> ssl.SSLContext:
    """Return the context of a listener; raise ConfigError if its files are unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.minimum_version = VERSIONS[config.min_version]
    _set_ciphers(context, config)
    if len(config.curve_preferences) == 1:
        context.set_ecdh_curve(CURVES[config.curve_preferences[0]])
    if config.pinned_certs:
        nkeys.require_cryptography("`tls.pinned_certs`")
    load_files(context, config)
    return context


def _set_ciphers(context: ssl.SSLContext, config: TlsConfig) -> None:
    ciphers = [ALL_CIPHER_SUITES[name] for name in config.cipher_suites]
    old_ciphers = [name for name in ciphers if not name.startswith("TLS_")]
    if not ciphers:
        return
    if not old_ciphers:
        # Those of the list are for TLS 1.3 only, so nothing is left for an older version.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        context.set_ciphers(":".join(old_ciphers))
    except ssl.SSLError:
        raise ConfigError(
            f"`tls.cipher_suites` has none that {ssl.OPENSSL_VERSION} can do"
        ) from None


def load_files(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Read certificates, keys and authorities, or read them again. Open connections keep theirs."""
    certificates = config.certificates
    if certificates:
        _load_certificate(context, certificates[0])
    _load_authorities(context, config)
    context.sni_callback = _chooser(context, config) if len(certificates) > 1 else None


def _load_certificate(context: ssl.SSLContext, files: CertificateFiles) -> None:
    try:
        context.load_cert_chain(files.cert_file, files.key_file)
    except OSError as error:
        raise ConfigError(
            f"cannot use `tls.cert_file` {files.cert_file} with `tls.key_file` "
            f"{files.key_file}: {_reason(error)}"
        ) from None


def _chooser(context: ssl.SSLContext, config: TlsConfig) -> Chooser:
    """Return the callback that chooses the certificate by the client's server name."""
    nkeys.require_cryptography("`tls.certs`")
    named = []
    for files in config.certificates:
        alone = TlsConfig(**_settings(config) | vars(files) | {"certs": ()})
        own = context if files == config.certificates[0] else server_context(alone)
        named += [(name, own) for name in _dns_names(files.cert_file)]

    def choose(sock: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        for pattern, found in named:
            if name and _is_named(pattern, name.lower()):
                sock.context = found
                return

    return choose


def _settings(config: TlsConfig) -> dict[str, Any]:
    return {item.name: getattr(config, item.name) for item in fields(config)}


def _dns_names(cert_file: str) -> list[str]:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(Path(cert_file).read_bytes())
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [name.lower() for name in found.value.get_values_for_type(x509.DNSName)]


def _is_named(pattern: str, name: str) -> bool:
    """Tell whether a certificate is for a name; a star stands for its first label."""
    if pattern.startswith("*."):
        return name.partition(".")[2] == pattern[2:]
    return pattern == name


def _load_authorities(context: ssl.SSLContext, config: TlsConfig) -> None:
    if not config.verifies:
        return
    context.verify_mode = ssl.CERT_REQUIRED
    if config.ca_file is None:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    try:
        context.load_verify_locations(config.ca_file)
    except OSError as error:
        raise ConfigError(f"cannot use `tls.ca_file` {config.ca_file}: {_reason(error)}") from None


def tls_state(sock: ssl.SSLSocket, *, is_first: bool = False) -> TlsState:
    """Return the result of a socket's handshake."""
    cipher = sock.cipher()
    name = cipher[0] if cipher else ""
    return TlsState(
        version=(sock.version() or "").removeprefix("TLSv"),
        cipher_suite=SUITE_NAMES.get(name, name),
        is_first=is_first,
        certificate=_certificate(sock),
    )


def _certificate(sock: ssl.SSLSocket) -> Certificate | None:
    """Return the client's certificate, if it was requested and sent."""
    encoded = sock.getpeercert(binary_form=True)
    details: Any = sock.getpeercert()
    if not encoded or not details:
        return None
    names = details.get("subjectAltName", ())
    return Certificate(
        subject=tuple(
            (ATTRIBUTES.get(name, name), value)
            for part in details.get("subject", ())
            for name, value in part
        ),
        emails=tuple(value for kind, value in names if kind == "email"),
        dns_names=tuple(value for kind, value in names if kind == "DNS"),
        uris=tuple(value for kind, value in names if kind == "URI"),
        pem=ssl.DER_cert_to_PEM_cert(encoded),
        sha256=hashlib.sha256(encoded).hexdigest(),
        public_key_sha256=_public_key_sha256(encoded),
    )


def _public_key_sha256(encoded: bytes) -> str:
    try:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        return ""
    try:
        public_key = x509.load_der_x509_certificate(encoded).public_key()
    except (ValueError, UnsupportedAlgorithm):
        # OpenSSL has verified it, so it is valid; but its key cannot be a pinned one.
        return ""
    info = public_key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(info).hexdigest()


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
