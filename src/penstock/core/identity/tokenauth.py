"""
Authentication of connections by user tokens (JWT) that their account has signed.

The server knows the accounts and their signing keys; it first sees a user when it connects.
The user signs the nonce to prove that it owns the token, unless it is a bearer token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config import accounttokens
from penstock.config.accounts import Account, Permissions
from penstock.config.server import Authorization
from penstock.core.identity.auth import UNKNOWN, Caller, Identity, Lookup, Pending, is_signed
from penstock.core.identity.templates import InvalidTemplate, filled
from penstock.keys import nkeys, tokens
from penstock.keys.tokens import Claims, InvalidToken

LIMITS = ("subs", "data", "payload")
RULES = ("pub", "sub", "resp", "src", "times", "bearer_token", "allowed_connection_types")
"""Besides limits, the fields that a user of a scoped key must leave empty: the scope sets them."""
USER_EXPIRED = "User Authentication Expired"
ACCOUNT_EXPIRED = "Account Authentication Expired"


class TokenAuthenticator:
    """Authenticates a CONNECT in operator mode."""

    required = True
    needs_nonce = True
    stranger = None

    def __init__(self, authorization: Authorization) -> None:
        nkeys.require_cryptography("an `operator`")
        self.accounts = {account.name: account for account in authorization.all_accounts}
        self._strict_keys = authorization.strict_keys
        resolver = authorization.resolver
        self._asks_elsewhere = resolver is not None and bool(resolver.url)

    def identify(
        self, options: Mapping[str, Any], caller: Caller = UNKNOWN
    ) -> Identity | Pending | None:
        """Return the user, a lookup of its account, or None to refuse."""
        try:
            claims = tokens.decode(options.get("jwt", ""), "user")
            if self._asks_elsewhere and self._is_missing(claims, caller.now_s):
                return Lookup(claims.nats.get("issuer_account") or claims.issuer)
            return self._user(claims, options, caller)
        except (InvalidToken, InvalidTemplate):
            return None

    def _is_missing(self, claims: Claims, now_s: float) -> bool:
        """Tell whether the resolver may have a token, or a newer one, for the user's account."""
        if not claims.is_valid_at(now_s):
            return False
        account = self.account_of(claims)
        return (
            account is None or account.claims is None or _is_past(account.claims.expires_s, now_s)
        )

    def account_of(self, claims: Claims) -> Account | None:
        """Return the account that a user token names."""
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
        """Return the rules for a user: those of its token, or the scope of its signing key."""
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
        """Return the user's permissions, from its token or from its signing key."""
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
    """Return the user of a token, if its rules permit this connection type and time."""
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
        max_subscriptions=_limit(rules, "subs", claims),
        max_payload=_limit(rules, "payload", claims),
        expires_s=account_expires_s if account_first else expires_s,
        expiry_text=ACCOUNT_EXPIRED if account_first else USER_EXPIRED,
    )


class TokenRefused(InvalidToken):
    """A valid token that does not permit this connection."""


def demand(condition: bool) -> None:
    """Refuse unless a condition holds."""
    if not condition:
        raise TokenRefused("its user may not connect now, or not like this")


def _says(value: Any) -> bool:
    """Tell whether a field has a value; a block of empty lists has none."""
    return any(value.values()) if isinstance(value, dict) else bool(value)


def _is_past(expires_s: float, now_s: float) -> bool:
    return 0 < expires_s <= now_s


def _limit(rules: Mapping[str, Any], name: str, claims: Claims) -> int:
    """Return a limit. In tokens of version 1, a missing limit means no limit."""
    limit = int(rules.get(name, 0))
    return limit or -1 if claims.version == 1 else limit


def _comes_from(networks: Any, ip: str) -> bool:
    if not networks:
        return True
    allowed = networks.split(",") if isinstance(networks, str) else networks
    import ipaddress

    try:
        address = ipaddress.ip_address(ip)
        return any(address in ipaddress.ip_network(each.strip(), strict=False) for each in allowed)
    except ValueError:
        return False


def _allowed_until(rules: Mapping[str, Any], now_s: float) -> float:
    """Return the end of the time in which a user may connect now; 0: no end."""
    if not rules.get("times"):
        return 0
    from penstock.core.identity import hours

    try:
        end_s = hours.allowed_until(rules["times"], rules.get("times_location", ""), now_s)
    except ValueError:
        raise TokenRefused("its times make no sense") from None
    demand(end_s is not None)
    return end_s or 0
