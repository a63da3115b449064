"""
Authenticators that ask the auth callout service.

Each extends another authenticator, by the configuration file or by account tokens, and starts from
its verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.config import accounttokens
from penstock.config.accounts import GLOBAL, Account, AuthCallout, Permissions
from penstock.config.server import Authorization
from penstock.core.identity import callout
from penstock.core.identity.auth import (
    UNKNOWN,
    Authenticator,
    Caller,
    Identity,
    Lookup,
    Pending,
    Question,
    Verified,
)
from penstock.core.identity.tokenauth import TokenAuthenticator, demand, identity_of
from penstock.errors import ConfigError
from penstock.keys import tokens
from penstock.keys.tokens import Claims, InvalidToken


class AskingAuthenticator(Authenticator):
    """Ask the auth callout service about all users except its own."""

    stranger = None

    def __init__(
        self, authorization: Authorization, rules: AuthCallout, verified: Verified
    ) -> None:
        super().__init__(authorization, verified)
        self._callout = rules
        self._known = {GLOBAL: Account(name=GLOBAL)} | {
            account.name: account for account in authorization.accounts
        }

    def identify(
        self, options: Mapping[str, Any], caller: Caller = UNKNOWN
    ) -> Identity | Pending | None:
        """Return the user, the work to do first, or None to refuse."""
        opinion = super().identify(options, caller)
        identity = opinion.identity if isinstance(opinion, Pending) else opinion
        # Who is known by a certificate or a key may claim any other name besides.
        claimed = options.get("nkey") or options.get("user") or ""
        user = claimed if identity is None else identity.user
        if user in self._callout.auth_users:
            return _without_asking(opinion, self._callout)
        account = identity.account if identity is not None else GLOBAL
        allowed = self._callout.allowed_accounts
        if account != GLOBAL and allowed and account not in allowed:
            return opinion
        return Question(options, caller, self._callout, self._accept)

    def _accept(
        self, question: Question, response: Claims, user: Claims, is_sealed: bool
    ) -> Identity:
        """Return the user of an answer, in the account that the answer names."""
        issuer = question.callout.issuer
        # What is sealed comes from the owner of the service's curve key.
        if not is_sealed and response.issuer != issuer:
            raise InvalidToken("another than the issuer has signed it")
        if user.nats.get("issuer_account") or user.issuer != issuer:
            raise InvalidToken("another than the issuer has signed its user")
        account = self._known.get(user.audience)
        if account is None:
            raise InvalidToken(f'it puts its user into "{user.audience}", which is no account')
        permissions = accounttokens.permissions(user.nats) or account.default_permissions
        return _accepted(question, user, user.nats, permissions, account)


class AskingTokenAuthenticator(TokenAuthenticator):
    """Ask the auth callout service about the users of accounts whose tokens demand it."""

    def __init__(self, authorization: Authorization) -> None:
        super().__init__(authorization)
        self._sentinel = authorization.default_sentinel
        if self._sentinel is not None:
            _check_sentinel(self._sentinel)

    def identify(
        self, options: Mapping[str, Any], caller: Caller = UNKNOWN
    ) -> Identity | Pending | None:
        """Return the user, the work to do first, or None to refuse."""
        try:
            claims = tokens.decode(options.get("jwt", ""), "user")
        except InvalidToken:
            if self._sentinel is None:
                return None
            options = {**options, "jwt": self._sentinel}
            claims = tokens.decode(self._sentinel, "user")
        opinion = super().identify(options, caller)
        if opinion is None or isinstance(opinion, Lookup):
            # Only ask the service about users with a valid token of their account.
            return opinion
        account = self.account_of(claims)
        rules = account.claims.auth_callout if account is not None and account.claims else None
        if rules is None:
            return opinion
        if claims.subject in rules.auth_users:
            return _without_asking(opinion, rules)
        return Question(options, caller, rules, self._accept)

    def _accept(
        self, question: Question, response: Claims, user: Claims, is_sealed: bool
    ) -> Identity:
        asked = self.accounts[question.callout.account]
        assert asked.claims is not None
        signer = response.nats.get("issuer_account") or response.issuer
        if not is_sealed and signer not in (asked.name, *asked.claims.signing_keys):
            raise InvalidToken("an unknown key has signed it")
        account = self.account_of(user)
        allowed = question.callout.allowed_accounts
        if account is None or (account is not asked and not {account.name, "*"} & {*allowed}):
            raise InvalidToken("it puts its user into an account that it may not")
        rules = self.rules(user, account)
        permissions = self.permissions(rules, user, account)
        return _accepted(question, user, rules, permissions, account)


def _check_sentinel(token: str) -> None:
    try:
        is_bearer = bool(tokens.decode(token, "user").nats.get("bearer_token"))
    except InvalidToken as error:
        raise ConfigError(f"`default_sentinel` is not the token of a user: {error}") from None
    if not is_bearer:
        raise ConfigError(
            "`default_sentinel` must be a bearer token, for clients have no key to it"
        )


def _accepted(
    question: Question,
    user: Claims,
    rules: Mapping[str, Any],
    permissions: Permissions | None,
    account: Account,
) -> Identity:
    caller, options = question.caller, question.options
    demand(user.is_valid_at(caller.now_s))
    identity = identity_of(user, rules, permissions, account, caller)
    name = user.name or options.get("nkey") or options.get("user", "")
    named = replace(identity, user=name, label="")
    return _not_asking_itself(named) if account.name == question.callout.account else named


def _without_asking(
    opinion: Identity | Pending | None, rules: AuthCallout
) -> Identity | Pending | None:
    """Return the service's own user: it may answer auth requests, but not send them."""
    if isinstance(opinion, Identity) and opinion.account == rules.account:
        return _not_asking_itself(opinion)
    return opinion


def _not_asking_itself(identity: Identity) -> Identity:
    own = identity.permissions or Permissions()
    denied = (*own.publish.deny, callout.SUBJECT.decode())
    return replace(identity, permissions=replace(own, publish=replace(own.publish, deny=denied)))
