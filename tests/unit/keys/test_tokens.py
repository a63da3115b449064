"""Tokens: what they say, and that they were signed by whom they say."""

from __future__ import annotations

import base64
import json

import pytest
from tests.contract.credentials import ACCOUNT, OPERATOR, USER, Key

from penstock.client.connection import auth
from penstock.keys import tokens
from penstock.keys.tokens import Claims, InvalidToken

ACME, ANN = Key(ACCOUNT), Key(USER)


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_a_token_is_read() -> None:
    jwt = ACME.jwt(ANN.public, "ann", {"type": "user", "tags": ["a:b"]}, exp=9, nbf=2)

    claims = tokens.decode(jwt, "user")

    assert (claims.subject, claims.issuer, claims.name) == (ANN.public, ACME.public, "ann")
    assert (claims.issued_s, claims.expires_s, claims.tags) == (1, 9, ("a:b",))
    assert [claims.is_valid_at(now_s) for now_s in (1, 2, 8, 9)] == [False, True, True, False]


def test_an_older_token_is_signed_without_its_header_and_has_its_kind_outside() -> None:
    header = encoded({"typ": "jwt", "alg": "ed25519"})
    body = encoded({"iss": ACME.public, "sub": ANN.public, "type": "user", "nats": {"pub": {}}})

    claims = tokens.decode(f"{header}.{body}.{auth.sign(ACME.seed, body)}", "user")

    assert (claims.kind, claims.version, claims.expires_s) == ("user", 1, 0)


@pytest.mark.parametrize(
    ("jwt", "error"),
    [
        ("", "not a NATS token"),
        ("a.b", "not a NATS token"),
        ("a.b.c", "not a NATS token"),
        (f"{encoded([])}.{encoded({})}.x", "not a NATS token"),
        (f"{encoded({'alg': 'none'})}.{encoded({'iss': ACME.public})}.", "not a NATS token"),
        (ACME.jwt(ANN.public, "x", {"type": "user"})[:-6] + "AAAAAA", "signature is wrong"),
        (ACME.jwt(ANN.public, "x", {"type": "account"}), "not `user`"),
        (Key(OPERATOR).jwt(ANN.public, "x", {"type": "user"}), "may not issue it"),
        (ACME.jwt(ACME.public, "x", {"type": "user"}), "key of another kind"),
        (ACME.jwt(ANN.public, "x", {"type": "user"}, iss=Key(ACCOUNT).public), "wrong"),
        (ACME.jwt(ANN.public, "x", {"type": "user"}, exp=float("inf")), "not a NATS token"),
        (f"{base64.b64encode(b'[' * 90_000).decode()}.e30.x", "not a NATS token"),
        ("\u0661\u0662.\u0663.\ud800", "not a NATS token"),
        (f"{encoded({'alg': 'ed25519'})}.{encoded({'iss': 'é'})}.x", "wrong"),
    ],
)
def test_what_is_no_good_token_is_refused(jwt: str, error: str) -> None:
    with pytest.raises(InvalidToken, match=error):
        tokens.decode(jwt, "user")


@pytest.mark.parametrize(
    ("revocations", "expected"),
    [({}, False), ({"U": 5}, True), ({"U": 4}, False), ({"*": 5}, True), ({"*": 4, "U": 9}, True)],
)
def test_what_was_issued_before_a_revocation_is_taken_back(
    revocations: dict[str, int], expected: bool
) -> None:
    claims = Claims("user", "U", "A", issued_s=5)

    assert expected == tokens.is_revoked(revocations, claims)
