"""
Certificates that claim too much: an authority has signed them, and they still name nobody else.

With `verify_and_map` the user is whom the certificate names, so each case is put to the real
server too, and both must come to the same user.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.certificates import Authority
from tests.conformance.test_auth_callout import ISSUER
from tests.servers import DEADLINE_S, HOST, PROGRAMS, Program, RawClient, ServerProcess, wait_until

USERS = (
    *("ann@example.org", "host.example.org", "*.wild.org", "spiffe://x/y", "ann", "admin"),
    *("CN=ann", "CN=ann,O=Acme", "O=Zed,CN=zoe", "CN=a\\,b", "CN=many,CN=bob", "CN=admin"),
)
REFUSED = "refused"
CN, ORG = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME
Part = tuple[x509.ObjectIdentifier, str]


def email(text: str) -> x509.GeneralName:
    """Return an e-mail address as no decent authority would sign it."""
    return x509.RFC822Name._init_without_validation(text)


def dns(text: str) -> x509.GeneralName:
    return x509.DNSName._init_without_validation(text)


def uri(text: str) -> x509.GeneralName:
    return x509.UniformResourceIdentifier._init_without_validation(text)


DIRECTORY = x509.DirectoryName(x509.Name([x509.NameAttribute(CN, "ann")]))
NOBODY = ((CN, "x"),)
NAMES: dict[str, tuple[tuple[Part, ...], tuple[x509.GeneralName, ...], str]] = {
    # case: (subject, alternative names, the user that it is)
    "an e-mail address": (NOBODY, (email("ann@example.org"),), "ann@example.org"),
    "NUL behind it": (NOBODY, (email("ann@example.org\0.evil.org"),), REFUSED),
    "NUL before it": (NOBODY, (email("evil\0ann@example.org"),), REFUSED),
    "in capitals": (NOBODY, (email("ANN@example.org"),), REFUSED),
    "a space behind it": (NOBODY, (email("ann@example.org "),), REFUSED),
    "two in one": (NOBODY, (email("x, email:ann@example.org"),), REFUSED),
    "a name": (NOBODY, (dns("host.example.org"),), "host.example.org"),
    "NUL behind the name": (NOBODY, (dns("host.example.org\0.evil.org"),), REFUSED),
    "a wildcard": (NOBODY, (dns("*.example.org"),), REFUSED),
    "a wildcard as it is": (NOBODY, (dns("*.wild.org"),), "*.wild.org"),
    "under a wildcard": (NOBODY, (dns("a.wild.org"),), REFUSED),
    "a URI": (NOBODY, (uri("spiffe://x/y"),), "spiffe://x/y"),
    "NUL behind the URI": (NOBODY, (uri("spiffe://x/y\0z"),), REFUSED),
    "no URI": (NOBODY, (uri("://"),), REFUSED),
    "a directory": (NOBODY, (DIRECTORY,), REFUSED),
    "thousands of names": (
        NOBODY,
        (*(dns(f"h{number}.example.org") for number in range(2500)), dns("host.example.org")),
        "host.example.org",
    ),
    "a subject": (((CN, "ann"),), (), "CN=ann"),
    "a subject that is a plain name": (((CN, "admin"),), (), "CN=admin"),
    "NUL in the subject": (((CN, "ann\0evil"),), (), REFUSED),
    "a subject in capitals": (((CN, "ANN"),), (), REFUSED),
    "a space behind the subject": (((CN, "ann "),), (), REFUSED),
    "a comma": (((CN, "a,b"),), (), "CN=a\\,b"),
    "a subject in a subject": (((CN, "ann,O=Acme"),), (), REFUSED),
    "a subject in a subject, escaped": (((CN, "ann\\,O=Acme"),), (), REFUSED),
    "a subject in an organization": (((ORG, "x,CN=ann"),), (), REFUSED),
    "two parts": (((ORG, "Acme"), (CN, "ann")), (), "CN=ann,O=Acme"),
    "two parts the other way": (((CN, "zoe"), (ORG, "Zed")), (), "O=Zed,CN=zoe"),
    "two names": (((CN, "bob"), (CN, "many")), (), "CN=many,CN=bob"),
    "one name of two": (((CN, "ann"), (CN, "evil")), (), REFUSED),
    "an address in the subject": (((NameOID.EMAIL_ADDRESS, "ann@example.org"),), (), REFUSED),
    "another address": (((CN, "ann"),), (email("other@x.org"),), "CN=ann"),
    "an IP": (((CN, "ann"),), (x509.IPAddress(ipaddress.ip_address("10.0.0.1")),), "CN=ann"),
    "nothing but an address": ((), (email("ann@example.org"),), "ann@example.org"),
    "nothing": ((), (), REFUSED),
}  # fmt: skip
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
FLAWS: dict[str, tuple[dict[str, Any], str]] = {
    "for clients": ({"usage": CLIENT}, "ann@example.org"),
    "for servers": ({"usage": SERVER}, REFUSED),
    "for code": ({"usage": ExtendedKeyUsageOID.CODE_SIGNING}, REFUSED),
    "expired": ({"hours": (-9, -1)}, REFUSED),
    "not yet": ({"hours": (1, 9)}, REFUSED),
    "signed by a stranger": ({"signer": "stranger"}, REFUSED),
    "signed by itself": ({"signer": "itself"}, REFUSED),
    "with what nobody understands": ({"is_odd": True}, REFUSED),
}


class Forge:
    """Makes certificates of all kinds, and has some of them signed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.authority = Authority(directory)

    def context(
        self,
        subject: tuple[Part, ...],
        names: tuple[x509.GeneralName, ...],
        *,
        usage: x509.ObjectIdentifier | None = None,
        hours: tuple[int, int] = (-1, 9),
        signer: str = "authority",
        is_odd: bool = False,
    ) -> ssl.SSLContext:
        """Return the context of a client with such a certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        keys = {"authority": self.authority._key, "itself": key}
        now = datetime.datetime.now(datetime.UTC)
        name = x509.Name([x509.NameAttribute(kind, value) for kind, value in subject])
        start, end = (now + datetime.timedelta(hours=each) for each in hours)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name if signer == "itself" else self.authority._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        if usage is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), False)
        if is_odd:
            odd = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0")
            builder = builder.add_extension(odd, True)
        signing_key = keys.get(signer) or ec.generate_private_key(ec.SECP256R1())
        certificate = builder.sign(signing_key, hashes.SHA256())
        return self._loaded(certificate, key)

    def _loaded(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> ssl.SSLContext:
        path = self._directory / "client.pem"
        encoded_key = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + encoded_key)
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        context.load_cert_chain(path)
        return context

    @property
    def tls(self) -> str:
        """The settings of a server that takes users from certificates."""
        pair = self.authority.server()
        files = {"cert_file": str(pair.cert), "key_file": str(pair.key)}
        ca_file = str(self.authority.ca)
        return f"tls {json.dumps(files | {'ca_file': ca_file, 'verify_and_map': True})}"


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Forge:
    return Forge(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: program.name)
def server(request: pytest.FixtureRequest, forge: Forge) -> Iterator[ServerProcess]:
    users = ", ".join(f"{{user: {json.dumps(user)}}}" for user in USERS)
    config = f"http_port: -1\n{forge.tls}\nauthorization {{ users = [ {users} ] }}\n"
    with ServerProcess(request.param, config) as running:
        yield running


def user_of(server: ServerProcess, context: ssl.SSLContext, **said: str) -> str:
    """Return who a client is by its certificate, whatever it says."""
    with socket.create_connection((HOST, server.port), DEADLINE_S) as plain:
        while not plain.recv(65536).endswith(b"\r\n"):
            """Read the INFO."""
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as sock:
                return _asked(sock, said)
        except (ssl.SSLError, ConnectionError):
            return REFUSED


def _asked(sock: ssl.SSLSocket, said: dict[str, str]) -> str:
    options = {"verbose": False, "headers": True, "no_responders": True} | said
    sock.sendall(
        b"CONNECT %b\r\n" % json.dumps(options).encode()
        + b"SUB answer 1\r\nPUB $SYS.REQ.USER.INFO answer 0\r\n\r\n"
    )
    said = b""
    while b"}}\r\n" not in said:
        data = sock.recv(65536)
        if not data or b"-ERR 'Authorization Violation'" in said + data:
            return REFUSED
        said += data
    start, end = said.index(b"\r\n{") + 2, said.rindex(b"\r\n")
    return str(json.loads(said[start:end])["data"]["user"])


@pytest.mark.parametrize("case", NAMES)
def test_a_certificate_is_exactly_whom_it_names(
    case: str, server: ServerProcess, forge: Forge
) -> None:
    subject, names, user = NAMES[case]

    assert user_of(server, forge.context(subject, names)) == user
    assert "Traceback" not in server.log


@pytest.mark.parametrize("said", ["admin", "CN=admin", "nobody"])
def test_a_certificate_is_whom_it_names_whatever_else_is_said(
    said: str, server: ServerProcess, forge: Forge
) -> None:
    context = forge.context(NOBODY, (email("ann@example.org"),))

    assert user_of(server, context, user=said) == "ann@example.org"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_name_of_the_callouts_own_user_spares_nobody_its_question(
    program: Program, forge: Forge
) -> None:
    """Nobody answers the question here, so nobody else is let in."""
    config = f"""
    {forge.tls}
    accounts {{ AUTH {{ users: [ {{ user: auth }}, {{ user: "ann@example.org" }} ] }} }}
    authorization {{
      timeout: 1
      auth_callout {{ issuer: {ISSUER.public}, account: AUTH, auth_users: [ auth ] }}
    }}
    """
    with ServerProcess(program, config) as server:
        context = forge.context(NOBODY, (email("ann@example.org"),))

        assert user_of(server, context) == REFUSED
        assert user_of(server, context, user="auth") == REFUSED


@pytest.mark.parametrize("case", FLAWS)
def test_a_certificate_that_is_not_good_for_this_names_nobody(
    case: str, server: ServerProcess, forge: Forge
) -> None:
    settings, user = FLAWS[case]

    assert user_of(server, forge.context(NOBODY, (email("ann@example.org"),), **settings)) == user
    wait_until(lambda: server.varz()["connections"] == 0)


def test_without_a_certificate_there_is_no_tls(server: ServerProcess, forge: Forge) -> None:
    context = ssl.create_default_context(cafile=str(forge.authority.ca))

    assert user_of(server, context) == REFUSED


def test_no_name_stands_in_for_a_certificate(server: ServerProcess, forge: Forge) -> None:
    """What a client says of itself counts for nothing where certificates do."""
    with RawClient(server.port) as client:
        client.send(b'CONNECT {"user":"admin"}\r\nPING\r\n')

        assert b"PONG" not in client.rest()
