"""
Account tokens fetched over HTTP: `resolver: URL(http://…)`.

`GET <url>/<account>` answers with the token of an account. The server fetches it for the
first user of the account, together with the tokens of accounts it imports from. It keeps
the token until it expires or another one is pushed.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from penstock.config import accounttokens
from penstock.errors import ConfigError
from penstock.keys import nkeys
from penstock.keys.tokens import InvalidToken
from penstock.protocol.redaction import redact

log = logging.getLogger("penstock")

TIMEOUT_S = 1.9
TOKEN_BYTES_MAX = 1024 * 1024
ACCOUNTS_MAX = 100
"""The maximum number of accounts in one fetch, since imports can form long chains."""


class AccountServer:
    """Implements `Elsewhere`. Fetching blocks, so it runs on threads, and at the start."""

    def __init__(
        self,
        url: str,
        operators: frozenset[str],
        change: Callable[[Mapping[str, str]], None],
        known: dict[str, str],
    ) -> None:
        """Start with the tokens in `known`; call `change` with each new set of tokens."""
        self._url = url if url.endswith("/") else url + "/"
        self._operators = operators
        self._change = change
        self.known = known
        """The tokens fetched so far."""
        # Like nats-server, ignore proxies in the environment.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._asked: dict[str, Future[str]] = {}
        self._lock = threading.Lock()

    def begin(self, system: str) -> None:
        """Check that the URL answers, and fetch the system account, if it is there already."""
        try:
            self._get("")
        except OSError as error:
            raise ConfigError(
                f"`resolver` {error}; hint: it has to answer when the server starts"
            ) from None
        if nkeys.is_public(system, nkeys.ACCOUNT_PREFIX):
            self.known = self.fetch(system)

    def adopt(self, tokens: Mapping[str, str]) -> None:
        """Add these accounts; do nothing if all of them are known."""
        if not tokens.items() <= self.known.items():
            self._change({**self.known, **tokens})

    def fetch(self, account: str) -> dict[str, str]:
        """Return the token of an account, and of those it imports from; empty if it is invalid."""
        found: dict[str, str] = {}
        wanted = [account]
        while wanted and len(found) < ACCOUNTS_MAX:
            key = wanted.pop()
            try:
                found[key] = token = self._token(key)
                claims = accounttokens.decode(key, token, self._operators)
                if not claims.is_valid_at(time.time()):
                    raise InvalidToken("it has expired")
            except (OSError, InvalidToken) as error:
                found.pop(key, None)
                log.warning("Account fetch failed: %s: %s", key, error)
                continue
            exporters = {taken.account for taken in accounttokens.account_of(claims).imports}
            wanted += [each for each in exporters if each not in {*found, *self.known}]
        return found if account in found else {}

    def _token(self, key: str) -> str:
        """Return one token. Concurrent requests for the same token share one answer."""
        if not nkeys.is_public(key, nkeys.ACCOUNT_PREFIX):
            raise OSError("it is no public key of an account")
        with self._lock:
            asked = self._asked.get(key)
            is_first = asked is None
            if asked is None:
                asked = self._asked[key] = Future()
        if not is_first:
            return asked.result()
        try:
            token = self._get(key)
        except Exception as error:
            asked.set_exception(error)
            raise
        else:
            asked.set_result(token)
            return token
        finally:
            with self._lock:
                del self._asked[key]

    def _get(self, name: str) -> str:
        try:
            with self._opener.open(self._url + name, timeout=TIMEOUT_S) as answer:
                body = answer.read(TOKEN_BYTES_MAX + 1)
        except urllib.error.URLError as error:
            reason = error if isinstance(error, urllib.error.HTTPError) else error.reason
            raise OSError(f"could not fetch {redact(self._url)}{name}: {reason}") from None
        except ValueError as error:
            raise OSError(str(error)) from None
        if len(body) > TOKEN_BYTES_MAX:
            raise OSError("its token is too large")
        return str(body.decode(errors="replace").strip())
