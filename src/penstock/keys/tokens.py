"""
JSON Web Tokens as NATS uses them: claims about one key, signed by another.

An operator's key signs the tokens of its accounts, an account's key those of its users.
Both versions of tokens are read: the older one signs only its body, and has its kind
outside the `nats` part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.keys import nkeys
from penstock.protocol.subjects import whole

Json = Mapping[str, Any]

ALGORITHMS = {"ed25519-nkey": 2, "ed25519": 1}
"""The algorithm that signs a token → the token's version."""
PREFIXES = {
    "O": nkeys.OPERATOR_PREFIX,
    "A": nkeys.ACCOUNT_PREFIX,
    "U": nkeys.USER_PREFIX,
}
KINDS = {
    # kind: the keys that sign it, and the kind of key that is its subject
    "operator": ("O", "O"),
    "account": ("OA", "A"),
    "user": ("A", "U"),
    "activation": ("AO", "A"),
    "authorization_response": ("A", "U"),
    "generic": ("OAU", "OAU"),
}
TOO_MUCH = (RecursionError, OverflowError)
"""Errors from JSON that is nested too deep, or from an endless number."""


class InvalidToken(ValueError):
    """An invalid token; the text says why."""


@dataclass(frozen=True)
class Claims:
    """The claims of a token. Certain is only that `issuer` signed them."""

    kind: str
    subject: str
    issuer: str
    name: str = ""
    issued_s: int = 0
    expires_s: int = 0
    """0: never."""
    not_before_s: int = 0
    audience: str = ""
    """The intended recipient."""
    nats: Mapping[str, Any] = ()  # type: ignore[assignment]
    tags: tuple[str, ...] = ()
    version: int = 2

    def is_valid_at(self, now_s: float) -> bool:
        """Tell whether the token is valid yet, and has not expired."""
        return self.not_before_s <= now_s and (not self.expires_s or now_s < self.expires_s)


def decode(token: str, kind: str) -> Claims:
    """Return the claims of a token of this kind, after checking its signature."""
    try:
        header, body, signature = token.strip().split(".")
        version = ALGORITHMS[_object(header)["alg"].lower()]
        claims = _object(body)
        signed = body if version == 1 else f"{header}.{body}"
        issuer = claims["iss"]
        if not nkeys.verify(issuer, signed.encode(), signature):
            raise InvalidToken("its signature is wrong")
        return _checked(_claims(claims, version), kind)
    except InvalidToken:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, *TOO_MUCH) as error:
        raise InvalidToken("it is not a NATS token") from error


def encode(claims: Json, key: nkeys.KeyPair) -> str:
    """Return a token with these claims, signed with a key."""
    header = {"typ": "JWT", "alg": "ed25519-nkey"}
    parts = [
        nkeys.encode_base64(json.dumps(part, separators=(",", ":")).encode())
        for part in (header, {**claims, "iss": key.public})
    ]
    signed = ".".join(parts)
    return f"{signed}.{key.sign(signed.encode())}"


def is_revoked(revocations: Mapping[str, int], claims: Claims) -> bool:
    """Tell whether the issuer has revoked the token since it was issued."""
    times = [revocations[key] for key in (claims.subject, "*") if key in revocations]
    return any(claims.issued_s <= until_s for until_s in times)


def numbers(values: Json, names: Iterable[str], *, missing: int = 0) -> dict[str, int]:
    """Return the numbers of an object by name."""
    return {name: int(values.get(name, missing)) for name in names}


def _object(part: str) -> dict[str, Any]:
    data = nkeys.decode_base64(part)
    found = json.loads(data)
    if b"\\ud" in data.lower():
        # Go reads half a character as U+FFFD, and no subject could be compared with one.
        found = json.loads(whole(json.dumps(found, ensure_ascii=False)))
    if not isinstance(found, dict):
        raise InvalidToken("it is not a NATS token")
    return found


def _claims(claims: Json, version: int) -> Claims:
    nats = claims.get("nats") or {}
    return Claims(
        kind=nats.get("type") or claims.get("type", ""),
        subject=claims["sub"],
        issuer=claims["iss"],
        name=claims.get("name", ""),
        issued_s=int(claims.get("iat", 0)),
        expires_s=int(claims.get("exp", 0)),
        not_before_s=int(claims.get("nbf", 0)),
        audience=claims.get("aud", ""),
        nats=nats,
        tags=tuple(nats.get("tags") or claims.get("tags") or ()),
        version=int(nats.get("version", version)),
    )


def _checked(claims: Claims, kind: str) -> Claims:
    if claims.kind != kind:
        raise InvalidToken(f"it is a token of kind `{claims.kind}`, not `{kind}`")
    issuers, subjects = KINDS[kind]
    if not any(nkeys.is_public(claims.issuer, PREFIXES[letter]) for letter in issuers):
        raise InvalidToken("its issuer may not issue it")
    if not any(nkeys.is_public(claims.subject, PREFIXES[letter]) for letter in subjects):
        raise InvalidToken("its subject is a key of another kind")
    return claims
