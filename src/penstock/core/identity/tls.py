"""What is known of a connection from its TLS handshake."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The verified certificate of a client, as far as a user can be found in it."""

    subject: tuple[tuple[str, str], ...]
    """The distinguished name from its first part to its last: ("O", "Acme"), ("CN", "ann")."""
    emails: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    sha256: str = ""
    """The digest of the whole certificate, in hexadecimal."""
    pem: str = ""
    public_key_sha256: str = ""
    """The digest of its public key, which `pinned_certs` lists."""

    @property
    def distinguished_name(self) -> str:
        """The subject as RFC 2253 writes it: the last part first."""
        return ",".join(f"{name}={_escaped(value)}" for name, value in reversed(self.subject))


@dataclass(frozen=True, kw_only=True)
class TlsState:
    """What a handshake agreed on."""

    version: str
    cipher_suite: str
    is_first: bool = False
    """Whether it came before INFO."""
    certificate: Certificate | None = None


def _escaped(value: str) -> str:
    """Escape what would end a part of a name."""
    escaped = "".join(f"\\{char}" if char in ',+"\\<>;' else char for char in value)
    if escaped.startswith(("#", " ")):
        escaped = f"\\{escaped}"
    if escaped.endswith(" ") and len(value) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped
