"""Who a connection is, by what it says of itself."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import bcrypt
import pytest
from tests.contract.credentials import USER, Key

from penstock.client.connection import auth as client_auth
from penstock.config.accounts import Permissions, SubjectRules, User
from penstock.config.server import Authorization
from penstock.core.identity import auth
from penstock.core.identity.auth import Authenticator, Caller, Check, Identity, Verified
from penstock.errors import ConfigError

SECRET_HASH = bcrypt.hashpw(b"s3cret", bcrypt.gensalt(4)).decode()
SOME = Permissions(publish=SubjectRules(allow=("a",)))
OTHER = Permissions(publish=SubjectRules(allow=("b",)))
USERS = Authorization(
    users=(
        User(name="ann", password="s3cret", permissions=SOME),
        User(name="bea", password=SECRET_HASH),
        User(name="empty", password=""),
    ),
    default_permissions=OTHER,
)


def verdict(authorization: Authorization, **options: Any) -> Identity | Check | None:
    return Authenticator(authorization).identify(options)


def who(verdict: Identity | Check | None) -> tuple[str, Permissions | None] | None:
    if isinstance(verdict, Check):
        # A check that lets nobody in, whatever it finds.
        assert verdict.identity is None
        return None
    return None if verdict is None else (verdict.user, verdict.permissions)


def test_everybody_is_welcome_where_nobody_is_named() -> None:
    authenticator = Authenticator(Authorization())

    assert not authenticator.required
    assert who(authenticator.stranger) == ("", None)
    assert who(authenticator.identify({"user": "me", "pass": "whatever"})) == ("me", None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"auth_token": "s3cret"}, ("", None)),
        ({"auth_token": "wrong"}, None),
        ({"auth_token": ""}, None),
        ({}, None),
        ({"user": "s3cret", "pass": "s3cret"}, None),
    ],
)
def test_a_token_lets_in_who_knows_it(options: dict[str, str], expected: object) -> None:
    assert expected == who(verdict(Authorization(token="s3cret"), **options))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"user": "ann", "pass": "s3cret"}, ("ann", SOME)),
        ({"user": "ann", "pass": "wrong"}, None),
        ({"user": "ann"}, None),
        ({"user": "nobody", "pass": "s3cret"}, None),
        ({"pass": "s3cret"}, None),
        ({"auth_token": "s3cret"}, None),
        ({}, None),
        ({"user": "empty"}, ("empty", OTHER)),
        ({"user": "empty", "pass": "x"}, None),
        ({"user": "ann", "pass": "s3crét"}, None),
    ],
)
def test_users_are_let_in_by_their_passwords(options: dict[str, str], expected: object) -> None:
    assert expected == who(verdict(USERS, **options))


def test_strangers_are_nobody_where_users_are_named() -> None:
    assert Authenticator(USERS).stranger is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("ann", SOME)),
        ({"user": "", "pass": ""}, ("ann", SOME)),
        ({"pass": "x"}, None),
        ({"auth_token": "x"}, None),
        ({"nkey": "x"}, ("ann", SOME)),
        ({"jwt": "x"}, ("ann", SOME)),
        ({"user": "nobody"}, None),
        ({"user": "empty"}, ("empty", OTHER)),
    ],
)
def test_who_gives_no_credentials_becomes_the_no_auth_user(
    options: dict[str, str], expected: object
) -> None:
    authorization = Authorization(users=USERS.users, default_permissions=OTHER, no_auth_user="ann")

    assert expected == who(verdict(authorization, **options))
    assert who(Authenticator(authorization).stranger) == ("ann", SOME)


@pytest.mark.parametrize(("password", "expected"), [("s3cret", True), ("wrong", False)])
def test_a_bcrypt_password_is_checked_elsewhere(password: str, expected: bool) -> None:
    check = verdict(USERS, user="bea", **{"pass": password})

    assert isinstance(check, Check)
    assert who(check.identity) == ("bea", OTHER)
    assert expected == check.run()


def test_a_bcrypt_token_is_checked_elsewhere() -> None:
    check = verdict(Authorization(token=SECRET_HASH), auth_token="s3cret")

    assert isinstance(check, Check)
    assert check.run()


def test_a_check_that_succeeded_need_not_be_made_again() -> None:
    authenticator = Authenticator(USERS)
    options = {"user": "bea", "pass": "s3cret"}
    check = authenticator.identify(options)
    assert isinstance(check, Check)

    check.verdict(True)

    assert who(authenticator.identify(options)) == ("bea", OTHER)
    assert isinstance(authenticator.identify(options | {"pass": "wrong"}), Check)


def test_the_memory_of_checks_is_bounded() -> None:
    verified = Verified()

    for number in range(auth.VERIFIED_MAX + 1):
        Check(Identity(), SECRET_HASH, str(number), verified).verdict(True)

    assert len(verified) == 1


def test_a_check_of_what_was_checked_meanwhile_takes_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verified = Verified()
    check = Check(Identity(), SECRET_HASH, "s3cret", verified)
    Check(Identity(), SECRET_HASH, "s3cret", verified).verdict(True)
    monkeypatch.delattr("bcrypt.checkpw")

    assert check.run()


MIXED = Authorization(
    users=(User(name="bea", password=SECRET_HASH), User(name="pete", password="plain"))
)


@pytest.mark.parametrize(
    "options",
    [
        {"user": "nobody", "pass": "guess"},
        {"user": "nobody"},
        {"user": "pete", "pass": "guess"},
        {"user": "bea", "pass": "guess"},
        {"auth_token": "guess"},
    ],
    ids=str,
)
def test_where_a_password_is_hashed_every_wrong_one_takes_as_long(options: dict[str, str]) -> None:
    check = verdict(MIXED, **options)

    assert isinstance(check, Check)
    assert check.hashed[4:6] == SECRET_HASH[4:6]
    assert len(check.hashed) == len(SECRET_HASH)
    assert not check.run()
    assert check.verdict(False) is None


def test_who_gives_nothing_is_refused_without_a_check() -> None:
    assert verdict(MIXED) is None
    assert verdict(MIXED, name="me") is None


@pytest.mark.parametrize("hashed", ["$2a$04$nonsense", "$2a$"])
def test_a_malformed_hash_lets_nobody_in(hashed: str) -> None:
    assert not Check(Identity(), hashed, "s3cret", Verified()).run()


def test_a_bcrypt_password_without_the_package_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "bcrypt", None)

    with pytest.raises(ConfigError, match=r"pip install 'penstock\[security\]'"):
        Authenticator(USERS)


KEY = Key(USER)
SIGNED = {"nkey": KEY.public, "sig": client_auth.sign(KEY.seed, "nonce")}
WITH_KEY = Authorization(
    users=(
        User(nkey=KEY.public, permissions=SOME),
        User(name="web", password="x", connection_types=frozenset({"WEBSOCKET"})),
    )
)


@pytest.mark.parametrize(
    ("options", "nonce", "expected"),
    [
        (SIGNED, "nonce", (KEY.public, SOME)),
        (SIGNED, "another", None),
        (SIGNED, "", None),
        ({"nkey": KEY.public}, "nonce", None),
        ({"sig": SIGNED["sig"]}, "nonce", None),
        ({"user": KEY.public, "sig": SIGNED["sig"]}, "nonce", None),
        (SIGNED | {"nkey": Key(USER).public}, "nonce", None),
        (SIGNED | {"sig": client_auth.sign(Key(USER).seed, "nonce")}, "nonce", None),
    ],
)
def test_an_nkey_lets_in_who_signs_the_nonce_with_it(
    options: dict[str, str], nonce: str, expected: object
) -> None:
    assert expected == who(Authenticator(WITH_KEY).identify(options, Caller(nonce=nonce)))


def test_an_nkey_says_nothing_where_no_user_has_one() -> None:
    guests = dataclasses.replace(USERS, no_auth_user="ann")

    assert who(verdict(guests, **SIGNED)) == ("ann", SOME)
    assert not Authenticator(guests).needs_nonce


def test_the_user_of_strangers_may_have_an_nkey() -> None:
    guests = dataclasses.replace(WITH_KEY, no_auth_user=KEY.public)

    assert who(verdict(guests)) == (KEY.public, SOME)
    assert who(verdict(guests, nkey=KEY.public)) == (KEY.public, SOME)


@pytest.mark.parametrize(("kind", "expected"), [("WEBSOCKET", ("web", None)), ("STANDARD", None)])
def test_a_user_may_be_bound_to_a_way_to_connect(kind: str, expected: object) -> None:
    options = {"user": "web", "pass": "x"}

    assert expected == who(Authenticator(WITH_KEY).identify(options, Caller(connection_type=kind)))


def test_an_nkey_without_cryptography_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)

    with pytest.raises(ConfigError, match=r"`nkey` needs .* 'penstock\[security\]'"):
        Authenticator(WITH_KEY)
