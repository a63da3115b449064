"""
Accounts as the tokens of an operator describe them.

The result is the same as that of a configuration file. An import that its exporter does not
allow is skipped and logged, because the server's file is not to blame.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock.config.accounts import (
    Account,
    AccountClaims,
    AccountLimits,
    AuthCallout,
    Destination,
    Export,
    Import,
    JetStreamLimits,
    Latency,
    MessageTracing,
    Permissions,
    ResponseRules,
    SubjectMapping,
    SubjectRules,
)
from penstock.config.frozen import dataclass
from penstock.config.sharing import check_import
from penstock.errors import ConfigError
from penstock.keys import tokens
from penstock.keys.tokens import Claims, InvalidToken
from penstock.protocol import transforms
from penstock.protocol.times import SECOND_NS

log = logging.getLogger("penstock")

RESPONSES = {"stream": "stream", "chunked": "chunked"}
UNLIMITED = -1
TIER = "R1"
"""Streams with one replica: the only ones on a single server."""
ALWAYS = 100
JETSTREAM = {
    "mem_storage": "max_memory",
    "disk_storage": "max_store",
    "streams": "max_streams",
    "consumer": "max_consumers",
    "max_ack_pending": "max_ack_pending",
    "mem_max_stream_bytes": "memory_max_stream_bytes",
    "disk_max_stream_bytes": "store_max_stream_bytes",
}


def read_accounts(preload: Mapping[str, str], operators: frozenset[str]) -> tuple[Account, ...]:
    """Return the accounts of a resolver; one of the operators must have signed each."""
    accounts = {key: _account(key, token, operators) for key, token in preload.items()}
    return tuple(_with_allowed_imports(account, accounts) for account in accounts.values())


@dataclass(frozen=True, kw_only=True)
class Trust:
    """The combined claims of all operator tokens."""

    keys: frozenset[str] = frozenset()
    """Keys that sign accounts."""
    strict_keys: frozenset[str] = frozenset()
    """The operator keys whose accounts sign users with signing keys only."""
    system_account: str = ""
    account_server: str = ""
    """The operator's URL of account tokens, if there is one operator and it names one."""


def read_operators(texts: Iterable[str]) -> Trust:
    """Return the keys that the operators' tokens trust."""
    trust = Trust()
    for text in texts:
        try:
            claims = tokens.decode(text, "operator")
        except InvalidToken as error:
            raise ConfigError(f"`operator` has a bad token: {error}") from None
        keys = frozenset(claims.nats.get("signing_keys") or ())
        is_strict = bool(claims.nats.get("strict_signing_key_usage", False))
        if claims.issuer not in keys | {claims.subject}:
            raise ConfigError("`operator` has a token that is not self-signed")
        keys |= frozenset() if is_strict else {claims.subject}
        trust = Trust(
            keys=trust.keys | keys,
            strict_keys=trust.strict_keys | (keys if is_strict else frozenset()),
            system_account=trust.system_account or claims.nats.get("system_account", ""),
            account_server="" if trust.keys else claims.nats.get("account_server_url", ""),
        )
    return trust


def permissions(nats: Mapping[str, Any]) -> Permissions | None:
    """Return the permissions of a user, a scope or an account; None if there are none."""
    publish, subscribe = _rules(nats.get("pub")), _rules(nats.get("sub"))
    responses = nats.get("resp")
    if publish is None and subscribe is None and not responses:
        return None
    rules = None
    if responses:
        usual = ResponseRules()
        rules = ResponseRules(
            messages_max=int(responses.get("max", 0)) or usual.messages_max,
            expires_s=int(responses.get("ttl", 0)) / SECOND_NS or usual.expires_s,
        )
    return Permissions(
        publish=publish or SubjectRules(),
        subscribe=subscribe or SubjectRules(),
        allow_responses=rules,
    )


def _rules(rules: Mapping[str, Any] | None) -> SubjectRules | None:
    allow, deny = ((rules or {}).get(name) or () for name in ("allow", "deny"))
    if not allow and not deny:
        return None
    return SubjectRules(allow=tuple(allow) or None, deny=tuple(deny))


def decode(key: str, token: str, operators: frozenset[str]) -> Claims:
    """Return the claims about the account with this key, signed by one of the operators."""
    claims = tokens.decode(token, "account")
    if claims.subject != key:
        raise InvalidToken(f"it is about {claims.subject}")
    if claims.issuer not in operators:
        raise InvalidToken("no trusted operator has signed it")
    return claims


def _account(key: str, token: str, operators: frozenset[str]) -> Account:
    try:
        return account_of(decode(key, token, operators))
    except InvalidToken as error:
        raise ConfigError(
            f"`resolver_preload` has a bad token for account {key}: {error}"
        ) from None


def account_of(claims: Claims) -> Account:
    """Return the account that a token describes."""
    nats = claims.nats
    limits = nats.get("limits") or {}
    defaults = nats.get("default_permissions")
    return Account(
        name=claims.subject,
        limits=AccountLimits(
            max_connections=int(limits.get("conn", UNLIMITED)),
            max_subscriptions=int(limits.get("subs", UNLIMITED)),
            max_payload=int(limits.get("payload", UNLIMITED)),
        ),
        jetstream=_jetstream(limits),
        default_permissions=permissions(defaults) if defaults else None,
        exports=tuple(_export(each) for each in nats.get("exports") or ()),
        imports=tuple(_import(each) for each in nats.get("imports") or ()),
        mappings=tuple(_mappings(nats.get("mappings") or {})),
        msg_trace=_msg_trace(nats.get("trace") or {}),
        claims=AccountClaims(
            name=claims.name,
            tags=claims.tags,
            issuer=claims.issuer,
            issued_s=claims.issued_s,
            expires_s=claims.expires_s,
            signing_keys=dict(map(_signing_key, nats.get("signing_keys") or ())),
            revocations={key: int(at) for key, at in (nats.get("revocations") or {}).items()},
            refuses_bearers=bool(limits.get("disallow_bearer", False)),
            auth_callout=_auth_callout(claims),
        ),
    )


def _auth_callout(claims: Claims) -> AuthCallout | None:
    given = claims.nats.get("authorization") or {}
    if not given.get("auth_users"):
        return None
    return AuthCallout(
        issuer=claims.subject,
        account=claims.subject,
        auth_users=tuple(given["auth_users"]),
        xkey=given.get("xkey", ""),
        allowed_accounts=tuple(given.get("allowed_accounts") or ()),
    )


def _jetstream(limits: Mapping[str, Any]) -> JetStreamLimits | None:
    # With tiers, a single server uses the limits for one replica.
    tiers = limits.get("tiered_limits") or {}
    given = {**limits, **(tiers.get(TIER) or {})}
    if not given.get("mem_storage") and not given.get("disk_storage"):
        return None
    values = {field: int(given.get(name, 0)) for name, field in JETSTREAM.items()}
    for field in ("max_ack_pending", "memory_max_stream_bytes", "store_max_stream_bytes"):
        values[field] = values[field] or UNLIMITED
    return JetStreamLimits(
        max_bytes_required=bool(given.get("max_bytes_required", False)),
        tier=TIER if tiers else "",
        **values,
    )


def _export(export: Mapping[str, Any]) -> Export:
    threshold_ns = int(export.get("response_threshold", 0))
    return Export(
        kind="service" if export.get("type") == "service" else "stream",
        subject=export["subject"],
        needs_token=bool(export.get("token_req", False)),
        response=RESPONSES.get(str(export.get("response_type", "")).lower(), "singleton"),  # type: ignore[arg-type]
        response_s_max=threshold_ns / SECOND_NS or Export.response_s_max,
        account_token=int(export.get("account_token_position", 0)),
        latency=_latency(export.get("service_latency")),
        allow_trace=bool(export.get("allow_trace", False)),
        revocations={key: int(at) for key, at in (export.get("revocations") or {}).items()},
    )


def _latency(given: Mapping[str, Any] | None) -> Latency | None:
    if not given:
        return None
    sampling = given.get("sampling", 0)
    is_by_headers = str(sampling).lower() == "headers"
    return Latency(subject=given["results"], sampling=0 if is_by_headers else int(sampling))


def _msg_trace(given: Mapping[str, Any]) -> MessageTracing | None:
    if not given.get("dest"):
        return None
    return MessageTracing(dest=given["dest"], sampling=int(given.get("sampling", 0)) or ALWAYS)


def _import(taken: Mapping[str, Any]) -> Import:
    kind = "service" if taken.get("type") == "service" else "stream"
    subject, to = taken["subject"], taken.get("local_subject", "")
    older = taken.get("to", "")
    if not to and older:
        # The older form: a prefix for streams; for services, the names are swapped.
        to = f"{older}.{subject}" if kind == "stream" else subject
        subject = subject if kind == "stream" else older
    return Import(
        kind=kind,  # type: ignore[arg-type]
        account=taken["account"],
        subject=subject,
        to=to,
        share=bool(taken.get("share", False)),
        allow_trace=bool(taken.get("allow_trace", False)),
        token=taken.get("token", ""),
    )


def _mappings(mappings: Mapping[str, Any]) -> list[SubjectMapping]:
    found = []
    for source, ways in mappings.items():
        destinations = tuple(
            Destination(subject=way["subject"], weight=int(way.get("weight", 0)) or 100)
            for way in ways
        )
        try:
            for each in destinations:
                transforms.check(source, each.subject)
        except transforms.InvalidTransform as error:
            log.error("Skipped the mapping of %s: %s", source, error)
            continue
        found.append(SubjectMapping(source=source, destinations=destinations))
    return found


def _signing_key(key: Any) -> tuple[str, Mapping[str, Any] | None]:
    """Return a signing key and the template for its users, if it has one."""
    if isinstance(key, str):
        return key, None
    return key["key"], key.get("template") or {}


def _with_allowed_imports(account: Account, accounts: Mapping[str, Account]) -> Account:
    kept = []
    for taken in account.imports:
        try:
            exporter = accounts.get(taken.account)
            activated = _activated(account, taken, exporter) if exporter is not None else taken
            check_import(account.name, activated, accounts)
            kept.append(activated)
        except ConfigError as error:
            log.error("Account %s: %s", account.name, error)
    return replace(account, imports=tuple(kept))


def _activated(account: Account, taken: Import, exporter: Account) -> Import:
    """Return an import; a valid activation token makes it permitted."""
    if not taken.token or exporter.claims is None:
        return replace(taken, is_activated=False)
    try:
        claims = tokens.decode(taken.token, "activation")
    except InvalidToken as error:
        raise ConfigError(f'the token to import "{taken.subject}" is invalid: {error}') from None
    issuer = claims.nats.get("issuer_account") or claims.issuer
    is_signed = claims.issuer == exporter.name or claims.issuer in exporter.claims.signing_keys
    export = exporter.export_of(taken)
    is_good = (
        is_signed
        and issuer == exporter.name
        and claims.subject == account.name
        and export is not None
        and not tokens.is_revoked(export.revocations, claims)
    )
    return replace(taken, is_activated=is_good)
