"""
`CLAIMS` requests of the system account: operators change accounts at run time.

Tokens are pushed, as with `nsc push`, looked up, listed and deleted. A directory resolver
saves them. Without one, only known accounts can change, until the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.config import accounttokens
from penstock.core.reports.system import encode
from penstock.core.runs import payloads
from penstock.hot.wire import HEADER_BYTES, REPLY, SUBJECT, Op
from penstock.keys import nkeys, tokens
from penstock.keys.tokens import InvalidToken
from penstock.protocol import subjects

if TYPE_CHECKING:
    from penstock.config.server import ServerConfig
    from penstock.core.broker import Broker
    from penstock.core.session import Session
    from penstock.net.system.accountfiles import AccountFiles

log = logging.getLogger("penstock")


class Words(NamedTuple):
    """The texts about a pushed token."""

    updated: str
    skipped: str
    failed: str


OF_STORE = Words("jwt updated", "jwt update skipped", "jwt update resulted in error")
OF_CACHE = Words(
    "jwt updated cache", "jwt update cache skipped", "jwt update cache resulted in error"
)
ACCOUNT_TOKEN = {"$SYS.REQ.ACCOUNT": 3, "$SYS.ACCOUNT": 2}
"""The prefix of a subject → the index of the token that names the account."""


class Failed(Exception):
    """A failed command, with its account and reason."""

    def __init__(self, account: str, message: str, reason: object) -> None:
        super().__init__(f"{message} - {reason}")
        self.account = account


class TrustingServer(Protocol):
    """A server whose accounts come from tokens that an operator has signed."""

    config: ServerConfig
    broker: Broker
    account_files: AccountFiles | None
    """The directory of account tokens, if one is configured."""

    def change_accounts(self, tokens: Mapping[str, str]) -> None:
        """Replace the accounts by those in these tokens."""


class ClaimsRequests:
    """Answers requests about account tokens in operator mode."""

    def __init__(self, server: TrustingServer) -> None:
        self._server = server

    def open(self) -> None:
        """Start listening."""
        system = self._server.broker.directory.system
        for prefix in ACCOUNT_TOKEN:
            system.listen(f"{prefix}.*.CLAIMS.UPDATE".encode(), self._orders(self._update_named))
        if self._server.account_files is None:
            return
        system.listen(b"$SYS.REQ.CLAIMS.UPDATE", self._orders(self._update))
        system.listen(b"$SYS.REQ.CLAIMS.DELETE", self._orders(self._delete))
        system.listen(b"$SYS.REQ.CLAIMS.LIST", self._on_list)
        if not self._is_cache:
            system.listen(b"$SYS.REQ.CLAIMS.PACK", self._on_pack)
            system.listen(b"$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP", self._on_lookup)

    def hears(self, kind: str) -> bool:
        """Tell whether requests of this kind about one account's token are answered here."""
        has_lookup = self._server.account_files is not None and not self._is_cache
        return kind == "UPDATE" or (kind == "LOOKUP" and has_lookup)

    @property
    def _is_cache(self) -> bool:
        resolver = self._server.config.authorization.resolver
        return resolver is not None and resolver.is_cache

    @property
    def _tokens(self) -> dict[str, str]:
        return dict(self._server.config.authorization.resolver_preload)

    def _orders(
        self, order: Callable[[str, str], tuple[str, str]]
    ) -> Callable[[list[Op], Session | None], None]:
        """Return a handler that executes each request, and answers with the result."""

        def on_batch(batch: list[Op], publisher: Session | None) -> None:
            for subject, reply, body in _requests(batch):
                document: dict[str, Any] = {}
                try:
                    account, message = order(subject, body)
                    document["data"] = _said(account) | {"code": 200, "message": message}
                except Failed as failure:
                    log.error("%s", failure)
                    document["error"] = _said(failure.account) | {
                        "code": 500,
                        "description": str(failure),
                    }
                server = self._server.broker.system.server()
                self._send(reply, encode({"server": server} | document))

        return on_batch

    def _update_named(self, subject: str, body: str) -> tuple[str, str]:
        words = subject.split(".")
        account = words[ACCOUNT_TOKEN[".".join(words[:-3])]]
        files = self._server.account_files
        if not body and files is None:
            raise Failed(account, "jwt update error", "request body is empty")
        named = account if files is None or self._is_cache else "n/a"
        claims = self._decoded(body, named)
        if claims.subject != account:
            raise Failed(account, self._words.failed, "subject does not match jwt content")
        if files is None and account not in self._tokens:
            return account, self._words.skipped
        return self._save(claims.subject, body)

    def _update(self, subject: str, body: str) -> tuple[str, str]:
        return self._save(self._decoded(body, "n/a").subject, body)

    def _decoded(self, token: str, account: str) -> tokens.Claims:
        try:
            return tokens.decode(token, "account")
        except InvalidToken as error:
            raise Failed(account, self._words.failed, error) from None

    @property
    def _words(self) -> Words:
        return OF_CACHE if self._is_cache else OF_STORE

    def _save(self, account: str, token: str) -> tuple[str, str]:
        if self._is_cache and account not in self._tokens:
            return account, self._words.skipped
        keys = self._server.config.authorization.operator_keys
        try:
            accounttokens.decode(account, token, keys)
            if self._server.account_files is not None:
                self._server.account_files.save(account, token)
        except (InvalidToken, OSError) as error:
            raise Failed(account, self._words.failed, error) from None
        self._server.change_accounts(self._tokens | {account: token})
        return account, self._words.updated

    def _delete(self, subject: str, body: str) -> tuple[str, str]:
        files = self._server.account_files
        assert files is not None
        signer = ""
        try:
            claims = tokens.decode(body, "generic")
            signer = claims.subject
            accounts = self._deletable(claims)
        except InvalidToken as error:
            message = f"delete accounts request by {signer} failed"
            raise Failed("", message, error) from None
        for account in accounts:
            files.delete(account)
        left = {key: token for key, token in self._tokens.items() if key not in accounts}
        self._server.change_accounts(left)
        return "", f"deleted {len(accounts)} accounts"

    def _deletable(self, claims: tokens.Claims) -> list[str]:
        """Return the accounts in a delete request; raise InvalidToken if it is not allowed."""
        authorization = self._server.config.authorization
        assert authorization.resolver is not None
        if not authorization.resolver.allow_delete:
            raise InvalidToken("delete must be enabled in server config")
        if claims.subject != claims.issuer:
            raise InvalidToken("not self signed")
        if claims.issuer not in authorization.operator_keys:
            raise InvalidToken("not trusted")
        accounts = claims.nats.get("accounts")
        if not isinstance(accounts, list) or not all(map(_is_account, accounts)):
            raise InvalidToken("malformed request")
        if authorization.system_account_name in accounts:
            raise InvalidToken("not allowed to delete system account")
        return accounts

    def _on_list(self, batch: list[Op], publisher: Session | None) -> None:
        for _, reply, _ in _requests(batch):
            server = self._server.broker.system.server()
            self._send(reply, encode({"server": server, "data": sorted(self._tokens)}))

    def _on_pack(self, batch: list[Op], publisher: Session | None) -> None:
        """Send all tokens, since the asker's own are unknown, and then an empty message."""
        for _, reply, _ in _requests(batch):
            for key, token in sorted(self._tokens.items()):
                self._send(reply, f"{key}|{token}".encode())
            self._send(reply, b"")

    def _on_lookup(self, batch: list[Op], publisher: Session | None) -> None:
        for subject, reply, _ in _requests(batch):
            self._send(reply, self._tokens.get(subject.split(".")[3], "").encode())

    def _send(self, reply: bytes, data: bytes) -> None:
        if reply:
            self._server.broker.directory.system.send(reply, data)


def _requests(batch: list[Op]) -> Iterator[tuple[str, bytes, str]]:
    for publish in batch:
        for message in payloads(publish):
            body = message[publish[HEADER_BYTES] : -2].decode(errors="replace")
            yield subjects.text(publish[SUBJECT]), publish[REPLY], body


def _said(account: str) -> dict[str, Any]:
    return {"account": account} if account else {}


def _is_account(value: object) -> bool:
    return isinstance(value, str) and nkeys.is_public(value, nkeys.ACCOUNT_PREFIX)
