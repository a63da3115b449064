"""The results of a TLS handshake."""

from __future__ import annotations

from penstock.config.frozen import dataclass


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The verified certificate of a client: the fields that can name a user, and digests."""

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
    """The parameters of a TLS connection."""

    version: str
    cipher_suite: str
    is_first: bool = False
    """Whether the handshake came before INFO."""
    certificate: Certificate | None = None


def _escaped(value: str) -> str:
    """Escape the characters that have a meaning in a distinguished name."""
    escaped = "".join(f"\\{char}" if char in ',+"\\<>;' else char for char in value)
    if escaped.startswith(("#", " ")):
        escaped = f"\\{escaped}"
    if escaped.endswith(" ") and len(value) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped
