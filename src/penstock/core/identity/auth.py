"""
Who a connection is.

Checking a bcrypt hash takes a tenth of a second by design. It is never done
here: the verdict on such a password is a `Check`, which the caller runs where
it blocks nobody, and whose success is remembered under a digest. Where one password is
hashed, whoever gives a wrong one waits for a check, so that nobody can tell by the time
whether a user is there.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.config.accounts import GLOBAL, AuthCallout, Permissions, User
from penstock.config.server import Authorization
from penstock.core.identity.certificates import user_in
from penstock.core.identity.tls import Certificate
from penstock.errors import ConfigError
from penstock.keys import nkeys
from penstock.keys.tokens import Claims

VERIFIED_MAX = 1024
CREDENTIALS = ("user", "pass", "auth_token")
"""The fields of a CONNECT by which a peer claims to be somebody."""
BCRYPT_PREFIXES = ("$2a$", "$2b$", "$2x$", "$2y$")


@dataclass(frozen=True, slots=True)
class Identity:
    """The user behind a connection, as far as it has one."""

    user: str = ""
    permissions: Permissions | None = None
    account: str = GLOBAL
    label: str = ""
    """What people call the user, where its name is a key."""
    is_renamed: bool = False
    """Whether another has said what its name is."""
    subscriptions_max: int = -1
    payload_bytes_max: int = -1
    expires_s: float = 0
    """When it ceases to be who it is; 0: never."""
    expiry_text: str = ""
    """What it is told then."""


class Caller(NamedTuple):
    """What is known of a connection beside what it says of itself."""

    nonce: str = ""
    """What it was asked to sign."""
    connection_type: str = "STANDARD"
    no_auth_user: str | None = None
    """Who it is without credentials, where its listener has a rule of its own."""
    ip: str = ""
    now_s: float = 0
    is_mapped: bool = False
    """Whether the user is to be taken from its certificate."""
    certificate: Certificate | None = None
    needs_password: bool = False
    """Whether users without a password are known by certificates, which another listener takes."""


UNKNOWN = Caller()


class Pending:
    """What has to be found out before it is known who a connection is."""

    __slots__ = ("identity",)

    def __init__(self, identity: Identity | None) -> None:
        self.identity = identity
        """Who it is if it turns out well, as far as that is known before."""


class Question(Pending):
    """A question to the service that says who users are."""

    __slots__ = ("_accept", "caller", "callout", "options")

    def __init__(
        self,
        options: Mapping[str, Any],
        caller: Caller,
        callout: AuthCallout,
        accept: Callable[[Question, Claims, Claims, bool], Identity],
    ) -> None:
        super().__init__(None)
        self.options = options
        self.caller = caller
        self.callout = callout
        self._accept = accept

    def accept(self, response: Claims, user: Claims, *, is_sealed: bool) -> Identity:
        """Return who it is by an answer and the user in it; InvalidToken if it will not do."""
        return self._accept(self, response, user, is_sealed)


class Verified:
    """Passwords that were checked once, as digests: the next connection need not wait."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._digests)

    def has(self, hashed: str, password: str) -> bool:
        """Tell whether a password was found right."""
        return _digest(hashed, password) in self._digests

    def add(self, hashed: str, password: str) -> None:
        """Remember that a password was found right."""
        if len(self._digests) >= VERIFIED_MAX:
            self._digests.clear()
        self._digests.add(_digest(hashed, password))


class Check(Pending):
    """A slow comparison still to be made: run it off the event loop."""

    __slots__ = ("_verified", "hashed", "password")

    def __init__(
        self, identity: Identity | None, hashed: str, password: str, verified: Verified
    ) -> None:
        super().__init__(identity)
        self.hashed = hashed
        self.password = password
        self._verified = verified

    def run(self) -> bool:
        """Compare; takes a tenth of a second, unless the same was compared meanwhile."""
        import bcrypt

        try:
            return self._verified.has(self.hashed, self.password) or bcrypt.checkpw(
                self.password.encode(), self.hashed.encode()
            )
        except ValueError:
            # A malformed hash, or a password bcrypt cannot take: neither lets anyone in.
            return False

    def verdict(self, succeeded: bool) -> Identity | None:
        """Return who it is by what `run` found, and remember it."""
        if succeeded:
            self._verified.add(self.hashed, self.password)
        return self.identity if succeeded else None


class Authenticator:
    """Decide who a CONNECT comes from."""

    def __init__(self, authorization: Authorization, verified: Verified | None = None) -> None:
        self._authorization = authorization
        self._users = {user.id: user for user in authorization.all_users}
        self._accounts = {
            user.id: account for account in authorization.accounts for user in account.users
        }
        self._verified = Verified() if verified is None else verified
        passwords = [user.password for user in authorization.all_users]
        hashes = [each for each in (*passwords, authorization.token or "") if is_bcrypt(each)]
        if hashes:
            _require_bcrypt()
        self._decoy = _decoy(hashes) if hashes else None
        self.needs_nonce = any(user.nkey for user in self._users.values())
        """Whether somebody may have to sign something to prove who they are."""
        if self.needs_nonce:
            nkeys.require_cryptography("a user with an `nkey`")

    @property
    def required(self) -> bool:
        """Whether a connection has to say who it is."""
        return self._authorization.required

    @property
    def stranger(self) -> Identity | None:
        """Who a connection is that has given no credentials; None: nobody yet."""
        rules = self._authorization
        if not rules.required:
            return Identity()
        return None if rules.no_auth_user is None else self._identity(rules.no_auth_user)

    def identify(
        self, options: Mapping[str, Any], caller: Caller = UNKNOWN
    ) -> Identity | Pending | None:
        """Return who it is, what has to be found out first, or None to refuse."""
        verdict = self._identify(options, caller)
        if verdict is None and self._decoy and any(options.get(field) for field in CREDENTIALS):
            return Check(None, self._decoy, options.get("pass", ""), self._verified)
        return verdict

    def _identify(self, options: Mapping[str, Any], caller: Caller) -> Identity | Check | None:
        rules = self._authorization
        name = options.get("user", "")
        if not rules.required:
            return Identity(name)
        if rules.token is not None:
            return self._compare(Identity(), rules.token, options.get("auth_token", ""))
        # Where no user has an nkey, one that is given says nothing.
        nkey = options.get("nkey", "") if self.needs_nonce else ""
        if caller.is_mapped and not nkey:
            return self._mapped(options, caller)
        if not nkey and not any(options.get(field) for field in CREDENTIALS):
            user_id = caller.no_auth_user
            return self._identity(user_id) if user_id in self._users else self.stranger
        # Looked at before the user is, so that it takes as long if there is none.
        is_proven = bool(nkey) and is_signed(nkey, options, caller)
        user = self._users.get(nkey or name)
        if user is None or not _may_connect_by(caller.connection_type, user):
            return None
        if user.nkey:
            is_proven = is_proven or user.nkey == rules.no_auth_user
            return self._identity(user.id) if nkey and is_proven else None
        if caller.needs_password and not user.password and user.id != rules.no_auth_user:
            return None
        return self._compare(self._identity(user.id), user.password, options.get("pass", ""))

    def _mapped(self, options: Mapping[str, Any], caller: Caller) -> Identity | Check | None:
        """Return the user that a certificate names; a password counts if it has one."""
        known = [
            user.name
            for user in self._users.values()
            if user.name and _may_connect_by(caller.connection_type, user)
        ]
        name = user_in(caller.certificate, known) if caller.certificate is not None else None
        if name is None:
            return None
        return self._compare(
            self._identity(name), self._users[name].password, options.get("pass", "")
        )

    def _identity(self, name: str) -> Identity:
        user, account = self._users[name], self._accounts.get(name)
        if account is None:
            return Identity(name, user.permissions or self._authorization.default_permissions)
        return Identity(name, user.permissions or account.default_permissions, account.name)

    def _compare(self, identity: Identity, expected: str, given: str) -> Identity | Check | None:
        if not is_bcrypt(expected):
            # Digests, for the time of a comparison tells the length of what is compared.
            digests = [hashlib.sha256(text.encode()).digest() for text in (expected, given)]
            return identity if hmac.compare_digest(*digests) else None
        if self._verified.has(expected, given):
            return identity
        return Check(identity, expected, given, self._verified)


def _may_connect_by(connection_type: str, user: User) -> bool:
    return not user.connection_types or connection_type in user.connection_types


def is_signed(public: str, options: Mapping[str, Any], caller: Caller) -> bool:
    """Tell whether the owner of a key has signed the nonce that this connection was sent."""
    return bool(caller.nonce) and nkeys.verify(
        public, caller.nonce.encode(), options.get("sig", "")
    )


def is_bcrypt(password: str) -> bool:
    """Tell whether a configured password is a bcrypt hash."""
    return password.startswith(BCRYPT_PREFIXES)


def _decoy(hashes: Iterable[str]) -> str:
    """Return a hash that takes as long as the slowest of others, and is no password's."""
    rounds = max(each[4:6] for each in hashes)
    return f"$2b${rounds}${'.' * 53}"


def _digest(hashed: str, password: str) -> bytes:
    return hashlib.sha256(f"{hashed}\0{password}".encode()).digest()


def _require_bcrypt() -> None:
    try:
        import bcrypt  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "a bcrypt password needs the bcrypt package; "
            "hint: pip install 'penstock[security]', or use a plain password"
        ) from error
