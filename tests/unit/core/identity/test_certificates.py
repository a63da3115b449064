"""Which user a certificate names."""

from __future__ import annotations

import pytest

from penstock.core.identity.certificates import distinguished_name, user_in
from penstock.core.identity.tls import Certificate

ANN = (("DC", "org"), ("O", "Acme, Inc."), ("CN", "ann"))

USUAL, OTHERWISE = "CN=ann,O=Acme\\, Inc.,DC=org", "dc=org, cn=ann, o=Acme\\2C Inc."


@pytest.mark.parametrize(
    ("certificate", "users", "expected"),
    [
        (Certificate(subject=ANN, emails=("a@x.org",)), ["b", "a@x.org"], "a@x.org"),
        (Certificate(subject=ANN, dns_names=("x.org",)), ["x.org"], "x.org"),
        (Certificate(subject=ANN, uris=("spiffe://x/a",)), ["spiffe://x/a"], "spiffe://x/a"),
        (Certificate(subject=ANN), [USUAL], USUAL),
        (Certificate(subject=ANN), [OTHERWISE], OTHERWISE),
        (Certificate(subject=ANN), ["CN=ann"], None),
        (Certificate(subject=ANN), ["CN=ann,O=Acme\\, Inc.,DC=org,DC=org"], None),
        (Certificate(subject=()), ["", "CN=ann"], None),
        (Certificate(subject=ANN, emails=("a@x.org",)), [], None),
    ],
)
def test_a_certificate_names_a_user(
    certificate: Certificate, users: list[str], expected: str | None
) -> None:
    assert expected == user_in(certificate, users)


def test_what_is_no_distinguished_name_has_no_parts() -> None:
    assert distinguished_name("ann") is None
    assert distinguished_name("") is None
