"""Certificates that tests make for themselves: an authority, and whom it vouches for."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAMES = {
    "CN": NameOID.COMMON_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
}
SERVER_NAMES = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """Makes certificates in a directory; its own is `ca`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name([("CN", name)])
        self._certificate = self._build(self._name, self._key, (), is_authority=True)
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str = "server", dns_names: tuple[str, ...] = ()) -> Pair:
        """Make the certificate of a server on this machine, or of one with other names."""
        alternatives = tuple(map(x509.DNSName, dns_names)) or SERVER_NAMES
        return self._pair(name, [("CN", "localhost")], alternatives)

    def client(
        self,
        name: str,
        *,
        subject: list[tuple[str, str]] | None = None,
        emails: tuple[str, ...] = (),
        dns_names: tuple[str, ...] = (),
    ) -> Pair:
        """Make the certificate of a client."""
        alternatives = (*map(x509.RFC822Name, emails), *map(x509.DNSName, dns_names))
        return self._pair(name, subject or [("CN", name)], alternatives)

    def _pair(
        self, name: str, subject: list[tuple[str, str]], alternatives: tuple[x509.GeneralName, ...]
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._build(_name(subject), key, alternatives)
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def _build(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        alternatives: tuple[x509.GeneralName, ...],
        *,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        return builder.sign(self._key, hashes.SHA256())


def _name(parts: list[tuple[str, str]]) -> x509.Name:
    return x509.Name([x509.NameAttribute(NAMES[name], value) for name, value in parts])


def public_key_sha256(cert: Path) -> str:
    """Return what `pinned_certs` lists for a certificate."""
    key = x509.load_pem_x509_certificate(cert.read_bytes()).public_key()
    encoded = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashes.Hash(hashes.SHA256())
    digest.update(encoded)
    return digest.finalize().hex()
