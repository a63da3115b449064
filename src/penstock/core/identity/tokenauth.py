"""
Who a connection is, by a token that its account has signed.

The server knows the accounts, and whom they trust; users are not known to it before
they connect. A user proves by a signature that the token is its own, unless the token
is for whoever bears it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from datetime import time as clock_time
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from penstock.config import accounttokens
from penstock.config.accounts import Account, Permissions
from penstock.config.server import Authorization
from penstock.core.identity.auth import UNKNOWN, Caller, Identity, Pending, is_signed
from penstock.core.identity.templates import InvalidTemplate, filled
from penstock.keys import nkeys, tokens
from penstock.keys.tokens import Claims, InvalidToken

LIMITS = ("subs", "data", "payload")
RULES = ("pub", "sub", "resp", "src", "times", "bearer_token", "allowed_connection_types")
"""What a user of a scoped key may not say of itself, beside limits: the scope says it."""
USER_EXPIRED = "User Authentication Expired"
ACCOUNT_EXPIRED = "Account Authentication Expired"
DAY = timedelta(days=1)


class TokenAuthenticator:
    """Decide who a CONNECT comes from, where operators are trusted."""

    required = True
    needs_nonce = True
    stranger = None

    def __init__(self, authorization: Authorization) -> None:
        nkeys.require_cryptography("an `operator`")
        self.accounts = {account.name: account for account in authorization.all_accounts}
        self._strict_keys = authorization.strict_keys

    def identify(
        self, options: Mapping[str, Any], caller: Caller = UNKNOWN
    ) -> Identity | Pending | None:
        """Return who it is, or None to refuse."""
        try:
            claims = tokens.decode(options.get("jwt", ""), "user")
            return self._user(claims, options, caller)
        except (InvalidToken, InvalidTemplate):
            return None

    def account_of(self, claims: Claims) -> Account | None:
        """Return the account that a user says it is of."""
        return self.accounts.get(claims.nats.get("issuer_account") or claims.issuer)

    def _user(self, claims: Claims, options: Mapping[str, Any], caller: Caller) -> Identity:
        account = self.account_of(claims)
        demand(account is not None and account.claims is not None)
        assert account is not None
        assert account.claims is not None
        is_current = claims.is_valid_at(caller.now_s)
        demand(is_current and not _is_past(account.claims.expires_s, caller.now_s))
        rules = self.rules(claims, account)
        is_bearer = bool(rules.get("bearer_token", False))
        demand(not (is_bearer and account.claims.refuses_bearers))
        demand(is_bearer or is_signed(claims.subject, options, caller))
        demand(not tokens.is_revoked(account.claims.revocations, claims))
        demand(_comes_from(rules.get("src"), caller.ip))
        permissions = self.permissions(rules, claims, account)
        return identity_of(claims, rules, permissions, account, caller)

    def rules(self, claims: Claims, account: Account) -> Mapping[str, Any]:
        """Return the part of a token that limits a user, or what its signing key says instead."""
        assert account.claims is not None
        keys = dict(account.claims.signing_keys)
        if account.claims.issuer not in self._strict_keys:
            keys[account.name] = None
        demand(claims.issuer in keys)
        template = keys[claims.issuer]
        if template is None:
            return claims.nats
        demand(not any(_says(claims.nats.get(name)) for name in (*RULES, *LIMITS)))
        return template

    def permissions(
        self, rules: Mapping[str, Any], claims: Claims, account: Account
    ) -> Permissions | None:
        """Return what a user may do by its token, or by its signing key's."""
        own = accounttokens.permissions(rules)
        if own is None:
            return account.default_permissions
        return own if rules is claims.nats else filled(own, claims, account)


def identity_of(
    claims: Claims,
    rules: Mapping[str, Any],
    permissions: Permissions | None,
    account: Account,
    caller: Caller,
) -> Identity:
    """Return the user of a token within what its rules say of ways, times and limits."""
    types = rules.get("allowed_connection_types") or ()
    demand(not types or caller.connection_type in {each.upper() for each in types})
    until_s = _allowed_until(rules, caller.now_s)
    expires_s = min(filter(None, (claims.expires_s, until_s)), default=0)
    account_expires_s = account.claims.expires_s if account.claims is not None else 0
    account_first = _is_past(account_expires_s, expires_s or float("inf"))
    return Identity(
        claims.subject,
        permissions,
        account.name,
        label=claims.name,
        subscriptions_max=_limit(rules, "subs", claims),
        payload_bytes_max=_limit(rules, "payload", claims),
        expires_s=account_expires_s if account_first else expires_s,
        expiry_text=ACCOUNT_EXPIRED if account_first else USER_EXPIRED,
    )


class Refused(InvalidToken):
    """A token that is good, but not for this."""


def demand(condition: bool) -> None:
    """Refuse unless something is so."""
    if not condition:
        raise Refused("its user may not connect now, or not like this")


def _says(value: Any) -> bool:
    """Tell whether a field says anything; a block of empty lists does not."""
    return any(value.values()) if isinstance(value, dict) else bool(value)


def _is_past(expires_s: float, now_s: float) -> bool:
    return 0 < expires_s <= now_s


def _limit(rules: Mapping[str, Any], name: str, claims: Claims) -> int:
    """Return a limit; in the older tokens, what is left out is no limit."""
    limit = int(rules.get(name, 0))
    return limit or -1 if claims.version == 1 else limit


def _comes_from(networks: Any, ip: str) -> bool:
    if not networks:
        return True
    allowed = networks.split(",") if isinstance(networks, str) else networks
    try:
        address = ipaddress.ip_address(ip)
        return any(address in ipaddress.ip_network(each.strip(), strict=False) for each in allowed)
    except ValueError:
        return False


def _allowed_until(rules: Mapping[str, Any], now_s: float) -> float:
    """Return when the time of day ends in which a user may connect; 0: it does not end."""
    if not rules.get("times"):
        return 0
    now = datetime.fromtimestamp(now_s, UTC).astimezone(_zone(rules.get("times_location", "")))
    ends = [end for each in rules["times"] for end in _ends(each, now)]
    demand(bool(ends))
    return max(ends).timestamp()


def _zone(name: str) -> tzinfo | None:
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError):
        raise Refused("its times make no sense") from None


def _ends(span: Mapping[str, str], now: datetime) -> list[datetime]:
    """Return when a span of the day ends in which it is now, if it is; it may pass midnight."""
    try:
        start, end = (
            datetime.combine(now.date(), clock_time.fromisoformat(span[name]), now.tzinfo)
            for name in ("start", "end")
        )
    except (KeyError, ValueError):
        raise Refused("its times make no sense") from None
    if start <= end:
        return [end] if start < now < end else []
    if now > start:
        return [end + DAY]
    return [end] if now < end else []
