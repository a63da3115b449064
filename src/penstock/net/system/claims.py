"""
`CLAIMS` of the system account: who has the operator's word changes accounts while all goes on.

Tokens are pushed as `nsc push` does, looked up, listed and deleted. With a directory they are
kept there; without one an account that is known may change until the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.config import accounttokens
from penstock.core.account import payloads
from penstock.core.reports.system import encode
from penstock.hot.wire import Op
from penstock.keys import nkeys, tokens
from penstock.keys.tokens import InvalidToken

if TYPE_CHECKING:
    from penstock.core.session import Session
    from penstock.net.server import Server

log = logging.getLogger("penstock")

UPDATED = "jwt updated"
SKIPPED = "jwt update skipped"
FAILED = "jwt update resulted in error"
ACCOUNT_TOKEN = {"$SYS.REQ.ACCOUNT": 3, "$SYS.ACCOUNT": 2}
"""Which token of a subject names the account, by how the subject begins."""


class Failed(Exception):
    """What an order came to, and why."""

    def __init__(self, account: str, message: str, reason: object) -> None:
        super().__init__(f"{message} - {reason}")
        self.account = account


class ClaimsRequests:
    """Answers requests about the tokens of accounts, where there is an operator."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def open(self) -> None:
        """Start to listen."""
        if not self._server.config.authorization.trusts_operators:
            return
        system = self._server.broker.directory.system
        for prefix in ACCOUNT_TOKEN:
            system.listen(f"{prefix}.*.CLAIMS.UPDATE".encode(), self._orders(self._update_named))
        if self._server.account_files is None:
            return
        system.listen(b"$SYS.REQ.CLAIMS.UPDATE", self._orders(self._update))
        system.listen(b"$SYS.REQ.CLAIMS.DELETE", self._orders(self._delete))
        system.listen(b"$SYS.REQ.CLAIMS.LIST", self._on_list)
        system.listen(b"$SYS.REQ.CLAIMS.PACK", self._on_pack)
        system.listen(b"$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP", self._on_lookup)

    def hears(self, kind: str) -> bool:
        """Tell whether a request about the token of one account is answered here."""
        if not self._server.config.authorization.trusts_operators:
            return False
        return kind == "UPDATE" or (kind == "LOOKUP" and self._server.account_files is not None)

    @property
    def _tokens(self) -> dict[str, str]:
        return dict(self._server.config.authorization.resolver_preload)

    def _orders(
        self, order: Callable[[str, str], tuple[str, str]]
    ) -> Callable[[list[Op], Session | None], None]:
        """Return a handler that obeys each request, and tells what became of it."""

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
        claims = _decoded(body, account if files is None else "n/a")
        if claims.subject != account:
            raise Failed(account, FAILED, "subject does not match jwt content")
        if files is None and account not in self._tokens:
            return account, SKIPPED
        return self._save(claims.subject, body)

    def _update(self, subject: str, body: str) -> tuple[str, str]:
        return self._save(_decoded(body, "n/a").subject, body)

    def _save(self, account: str, token: str) -> tuple[str, str]:
        keys = self._server.config.authorization.operator_keys
        try:
            accounttokens.decode(account, token, keys)
            if self._server.account_files is not None:
                self._server.account_files.save(account, token)
        except (InvalidToken, OSError) as error:
            raise Failed(account, FAILED, error) from None
        self._server.change_accounts(self._tokens | {account: token})
        return account, UPDATED

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
        """Return the accounts that an operator wants to be gone, if that may be."""
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
        """Send each token, and then an empty message: who has the same anyway is not known."""
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
            body = message[publish[3] : -2].decode(errors="replace")
            yield publish[1].decode(errors="replace"), publish[2], body


def _decoded(token: str, account: str) -> tokens.Claims:
    try:
        return tokens.decode(token, "account")
    except InvalidToken as error:
        raise Failed(account, FAILED, error) from None


def _said(account: str) -> dict[str, Any]:
    return {"account": account} if account else {}


def _is_account(value: object) -> bool:
    return isinstance(value, str) and nkeys.is_public(value, nkeys.ACCOUNT_PREFIX)
