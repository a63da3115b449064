"""Who a connection is by its token: times, networks, templates and what they lead to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.contract.credentials import ACCOUNT, NO_LIMITS, OPERATOR, USER, Key

from penstock.config.accounts import Account, AccountClaims, Permissions, Resolver, SubjectRules
from penstock.config.server import Authorization
from penstock.core.identity.auth import Caller, Identity, Verified
from penstock.core.identity.authenticators import authenticator_for
from penstock.core.identity.templates import InvalidTemplate, filled
from penstock.core.identity.tokenauth import ACCOUNT_EXPIRED, USER_EXPIRED
from penstock.errors import ConfigError
from penstock.keys.tokens import Claims

ROOT, ACME, ANN = Key(OPERATOR), Key(ACCOUNT), Key(USER)
NOON_S = datetime(2026, 5, 4, 12, tzinfo=UTC).timestamp()


def authorization(exp: int = 0, **nats: Any) -> Authorization:
    operator = {"type": "operator", **nats.pop("operator", {})}
    account = ROOT.jwt(ACME.public, "acme", {"type": "account", **nats}, exp=exp)
    return Authorization(
        operators=(ROOT.jwt(ROOT.public, "root", operator),),
        resolver=Resolver(),
        resolver_preload={ACME.public: account},
    )


def who(rules: Authorization, *, claims: dict[str, Any] | None = None, **nats: Any) -> Any:
    """Return who a bearer of a token is at noon."""
    nats = {"type": "user", "bearer_token": True, **NO_LIMITS} | nats
    jwt = ACME.jwt(ANN.public, "ann", nats, **(claims or {}))
    caller = Caller(now_s=NOON_S, ip="10.1.2.3")
    return authenticator_for(rules, Verified()).identify({"jwt": jwt}, caller)


@pytest.mark.parametrize(
    ("start", "end", "zone", "hours"),
    [
        ("11:00:00", "13:00:00", "UTC", 1),
        ("13:00:00", "11:00:00", "UTC", None),
        ("22:00:00", "13:00:00", "UTC", 1),
        ("11:00:00", "02:00:00", "UTC", 14),
        ("13:00:00", "15:00:00", "Europe/Berlin", 1),
        ("11:00:00", "13:00:00", "Nowhere/Atall", None),
        ("soon", "13:00:00", "UTC", None),
    ],
)
def test_a_user_may_be_let_in_at_some_times_of_the_day(
    start: str, end: str, zone: str, hours: int | None
) -> None:
    found = who(authorization(), times=[{"start": start, "end": end}], times_location=zone)

    if hours is None:
        assert found is None
    else:
        assert found.expires_s == NOON_S + hours * 3600


@pytest.mark.parametrize(
    ("networks", "is_in"),
    [
        (["10.0.0.0/8"], True),
        ("192.168.0.0/16,10.1.0.0/16", True),
        (["192.168.0.0/16"], False),
        (["garbage"], False),
    ],
)
def test_a_user_may_be_bound_to_networks(networks: Any, is_in: bool) -> None:
    assert is_in == (who(authorization(), src=networks) is not None)


def test_who_expires_first_says_what_is_told() -> None:
    soon, later = int(NOON_S) + 10, int(NOON_S) + 20

    user = who(authorization(later), claims={"exp": soon})
    account = who(authorization(soon), claims={"exp": later})
    never = who(authorization())

    assert (user.expires_s, user.expiry_text) == (soon, USER_EXPIRED)
    assert (account.expires_s, account.expiry_text) == (soon, ACCOUNT_EXPIRED)
    assert never.expires_s == 0
    assert who(authorization(int(NOON_S))) is None


def test_a_strict_operator_wants_signing_keys() -> None:
    strict = {"strict_signing_key_usage": True, "signing_keys": [ROOT.public]}

    assert isinstance(who(authorization()), Identity)
    assert who(authorization(operator=strict)) is None


def test_operators_and_users_of_the_file_do_not_mix() -> None:
    good = authorization()

    with pytest.raises(ConfigError, match="remove `accounts`"):
        Authorization(
            operators=good.operators,
            resolver=Resolver(),
            resolver_preload=good.resolver_preload,
            no_auth_user="ann",
        )
    with pytest.raises(ConfigError, match="`trusted_keys` has"):
        Authorization(trusted_keys=(ACME.public,), resolver=Resolver())
    with pytest.raises(ConfigError, match="no trusted operator has signed it"):
        Authorization(
            trusted_keys=(Key(OPERATOR).public,),
            resolver=Resolver(),
            resolver_preload=good.resolver_preload,
        )


CLAIMS = Claims("user", "UKEY", "A", name="ann", tags=("team:red", "team:blue"))
ACCOUNT_OF = Account(name="AKEY", claims=AccountClaims(name="acme", tags=("zone:eu",)))


@pytest.mark.parametrize(
    ("allow", "expected"),
    [
        (("a.b",), ("a.b",)),
        (("{{name()}}.{{subject()}}",), ("ann.UKEY",)),
        (("{{account-name()}}.{{account-subject()}}",), ("acme.AKEY",)),
        (("t.{{tag(team)}}.{{account-tag(zone)}}",), ("t.red.eu", "t.blue.eu")),
        (("{{tag(none)}}", "kept"), ("kept",)),
    ],
)
def test_a_template_is_filled_for_a_user(allow: tuple[str, ...], expected: tuple[str, ...]) -> None:
    rules = Permissions(publish=SubjectRules(allow=allow))

    assert filled(rules, CLAIMS, ACCOUNT_OF).publish.allow == expected


def test_where_nothing_is_left_to_allow_nothing_is() -> None:
    rules = Permissions(subscribe=SubjectRules(allow=("{{tag(none)}}",)))

    assert filled(rules, CLAIMS, ACCOUNT_OF).subscribe == SubjectRules(deny=(">",))


@pytest.mark.parametrize("deny", ["{{tag(none)}}", "{{nonsense()}}"])
def test_a_template_that_would_deny_less_is_refused(deny: str) -> None:
    with pytest.raises(InvalidTemplate):
        filled(Permissions(publish=SubjectRules(deny=(deny,))), CLAIMS, ACCOUNT_OF)
