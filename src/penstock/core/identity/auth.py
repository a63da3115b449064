"""
Authentication of connections by the users of the configuration file.

A bcrypt check takes a tenth of a second by design, so it never runs here. The verdict on
such a password is a `Check`: the caller runs it off the event loop, and its success is
remembered under a digest. If any password is hashed, every wrong one waits for a check too;
so the time of an answer does not reveal whether a user exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.config.accounts import GLOBAL, AuthCallout, Permissions, User
from penstock.config.server import Authorization
from penstock.core.identity.certificates import user_in
from penstock.core.identity.tls import Certificate
from penstock.errors import ConfigError
from penstock.keys import nkeys

if TYPE_CHECKING:
    from penstock.keys.tokens import Claims

VERIFIED_MAX = 1024
CREDENTIALS = ("user", "pass", "auth_token")
"""The CONNECT fields with credentials."""
BCRYPT_PREFIXES = ("$2a$", "$2b$", "$2x$", "$2y$")


@dataclass(frozen=True, slots=True)
class Identity:
    """The authenticated user of a connection, if it has one."""

    user: str = ""
    permissions: Permissions | None = None
    account: str = GLOBAL
    label: str = ""
    """The readable name of a user whose `user` is a key."""
    max_subscriptions: int = -1
    max_payload: int = -1
    expires_s: float = 0
    """When the authentication expires; 0: never."""
    expiry_text: str = ""
    """The error that the client gets then."""


class Caller(NamedTuple):
    """The facts about a connection that its CONNECT options do not give."""

    nonce: str = ""
    """The nonce that the client has to sign."""
    connection_type: str = "STANDARD"
    no_auth_user: str | None = None
    """The user for clients without credentials, if the listener configures its own."""
    ip: str = ""
    now_s: float = 0
    is_mapped: bool = False
    """Whether the certificate names the user."""
    certificate: Certificate | None = None
    needs_password: bool = False
    """Whether users without a password authenticate by certificate on another listener."""


UNKNOWN = Caller()


class Pending:
    """Work to do before the user of a connection is known."""

    __slots__ = ("identity",)

    def __init__(self, identity: Identity | None) -> None:
        self.identity = identity
        """The user after success, as far as it is already known."""


class Question(Pending):
    """A question to the auth callout service."""

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
        """Return the user in an answer; raise InvalidToken if the answer is not acceptable."""
        return self._accept(self, response, user, is_sealed)


class Verified:
    """Digests of passwords that passed a check: the next connection need not wait."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._digests)

    def has(self, hashed: str, password: str) -> bool:
        """Tell whether a password has passed its check."""
        return _digest(hashed, password) in self._digests

    def add(self, hashed: str, password: str) -> None:
        """Remember that a password has passed its check."""
        if len(self._digests) >= VERIFIED_MAX:
            self._digests.clear()
        self._digests.add(_digest(hashed, password))


class Slow(Pending):
    """Slow work: run it off the event loop."""

    __slots__ = ()

    def run(self) -> bool:
        """Do the work; return whether it succeeded."""
        raise NotImplementedError

    def verdict(self, succeeded: bool) -> Identity | None:
        """Return the user for the result of `run`; None to refuse."""
        raise NotImplementedError


class Elsewhere(Protocol):
    """A source of account tokens that this server has not seen yet."""

    def fetch(self, account: str) -> Mapping[str, str]:
        """Return the token of an account, and those of the accounts it imports from. Blocks."""

    def adopt(self, tokens: Mapping[str, str]) -> None:
        """Add these accounts, and authenticate all clients again."""


class Lookup(Slow):
    """The lookup of a missing account token. Waiting clients are let in once it is here."""

    __slots__ = ("_found", "account", "elsewhere")

    def __init__(self, account: str) -> None:
        super().__init__(None)
        self.account = account
        self.elsewhere: Elsewhere | None = None
        self._found: Mapping[str, str] = {}

    def run(self) -> bool:
        """Fetch the token."""
        if self.elsewhere is not None:
            self._found = self.elsewhere.fetch(self.account)
        return bool(self._found)

    def verdict(self, succeeded: bool) -> Identity | None:
        """Add the account. That authenticates the waiting clients again, or refuses them."""
        if succeeded and self.elsewhere is not None:
            self.elsewhere.adopt(self._found)
        return None


class Check(Slow):
    """A bcrypt comparison still to be made."""

    __slots__ = ("_verified", "hashed", "password")

    def __init__(
        self, identity: Identity | None, hashed: str, password: str, verified: Verified
    ) -> None:
        super().__init__(identity)
        self.hashed = hashed
        self.password = password
        self._verified = verified

    def run(self) -> bool:
        """Compare. Takes a tenth of a second, unless the same password has passed meanwhile."""
        import bcrypt

        try:
            return self._verified.has(self.hashed, self.password) or bcrypt.checkpw(
                self.password.encode(), self.hashed.encode()
            )
        except ValueError:
            # A malformed hash, or a password that bcrypt cannot take: refuse both.
            return False

    def verdict(self, succeeded: bool) -> Identity | None:
        """Return the user if `run` succeeded, and remember the password."""
        if succeeded:
            self._verified.add(self.hashed, self.password)
        return self.identity if succeeded else None


class Authenticator:
    """Authenticates a CONNECT."""

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
        """Whether INFO needs a nonce, because some users sign it."""
        if self.needs_nonce:
            nkeys.require_cryptography("a user with an `nkey`")

    @property
    def required(self) -> bool:
        """Whether connections must authenticate."""
        return self._authorization.required

    @property
    def stranger(self) -> Identity | None:
        """The user of a connection without credentials; None if it must authenticate."""
        rules = self._authorization
        if not rules.required:
            return Identity()
        return None if rules.no_auth_user is None else self._identity(rules.no_auth_user)

    def identify(
        self, options: Mapping[str, Any], caller: Caller = UNKNOWN
    ) -> Identity | Pending | None:
        """Return the user, the work to do first, or None to refuse."""
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
        # Without nkey users, ignore an nkey.
        nkey = options.get("nkey", "") if self.needs_nonce else ""
        if caller.is_mapped and not nkey:
            return self._mapped(options, caller)
        if not nkey and not any(options.get(field) for field in CREDENTIALS):
            user_id = caller.no_auth_user
            return self._identity(user_id) if user_id in self._users else self.stranger
        # Verify before looking for the user, so that an unknown user takes as long.
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
        """Return the user that a certificate names; check the password if the user has one."""
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
            # Compare digests: the time of a comparison reveals the length of its operands.
            import hashlib
            import hmac

            digests = [hashlib.sha256(text.encode()).digest() for text in (expected, given)]
            return identity if hmac.compare_digest(*digests) else None
        if self._verified.has(expected, given):
            return identity
        return Check(identity, expected, given, self._verified)


def _may_connect_by(connection_type: str, user: User) -> bool:
    return not user.connection_types or connection_type in user.connection_types


def is_signed(public: str, options: Mapping[str, Any], caller: Caller) -> bool:
    """Tell whether the owner of a key has signed this connection's nonce."""
    return bool(caller.nonce) and nkeys.verify(
        public, caller.nonce.encode(), options.get("sig", "")
    )


def is_bcrypt(password: str) -> bool:
    """Tell whether a configured password is a bcrypt hash."""
    return password.startswith(BCRYPT_PREFIXES)


def _decoy(hashes: Iterable[str]) -> str:
    """Return a hash that no password has, and that takes as long as the slowest of the others."""
    rounds = max(each[4:6] for each in hashes)
    return f"$2b${rounds}${'.' * 53}"


def _digest(hashed: str, password: str) -> bytes:
    import hashlib

    return hashlib.sha256(f"{hashed}\0{password}".encode()).digest()


def _require_bcrypt() -> None:
    try:
        import bcrypt  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "a bcrypt password needs the bcrypt package; "
            "hint: pip install 'penstock[security]', or use a plain password"
        ) from error
