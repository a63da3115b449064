"""
The accounts of a server, created from the configuration and joined by their imports.

Accounts outlive a reload, so that their clients stay connected. A reload removes all
imports and mappings, and builds them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.config.accounts import GLOBAL
from penstock.config.sharing import Relation
from penstock.core.account import Account
from penstock.core.sharing.mappings import Mappings
from penstock.core.sharing.services import Replies, ServiceImport
from penstock.core.sharing.streamimports import StreamImport

if TYPE_CHECKING:
    from penstock.config.server import Authorization

ID_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
ID_LENGTH = 12


class Directory:
    """Every account by its name."""

    def __init__(
        self,
        authorization: Authorization,
        *,
        route_cache_size: int,
        random: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        clock_ns: Callable[[], int],
        install: Callable[[Account], None],
        call_later: Callable[[float, Callable[[], None]], object] = lambda delay_s, action: None,
    ) -> None:
        """Create the accounts, and call `install` with each."""
        self.accounts: dict[str, Account] = {}
        self._made: dict[str, Account] = {}
        """Every account since the start: an account that comes back is the same object."""
        self._replies: dict[Account, Replies] = {}
        """The reply subjects made in each account for requests from other accounts."""
        self._route_cache_size = route_cache_size
        self._random = random
        self._random_bytes = random_bytes
        self._clock_ns = clock_ns
        self._call_later = call_later
        self._installers = [install]
        """Called with each new account."""
        self._imports: list[StreamImport | ServiceImport] = []
        self.apply(authorization)

    def apply(self, authorization: Authorization) -> None:
        """Apply the configured accounts and their imports."""
        while self._imports:
            self._imports.pop().close()
        kept: dict[str, Account] = {}
        names = [account.name for account in authorization.all_accounts]
        system = authorization.system_account_name
        for name in dict.fromkeys((GLOBAL, system, *names)):
            account = self._made.get(name) or self._new_account(name)
            account.config = authorization.account_of(name)
            mappings = account.config.mappings
            account.mappings = Mappings(mappings, self._random) if mappings else None
            kept[name] = account
        self.accounts = kept
        self.system = self.accounts[system]
        for account in self.accounts.values():
            self._join(account)

    def _new_account(self, name: str) -> Account:
        account = Account(name, route_cache_size=self._route_cache_size, random=self._random)
        self._made[name] = account
        self._replies[account] = Replies(account, self.new_id, self._clock_ns, self._call_later)
        for install in self._installers:
            install(account)
        return account

    def install(self, install: Callable[[Account], None]) -> None:
        """Call `install` with all accounts, present and future."""
        for account in self.accounts.values():
            install(account)
        self._installers.append(install)

    def replies_of(self, account: Account) -> Replies:
        """Return the reply subjects made in an account for requests from other accounts."""
        return self._replies[account]

    def new_id(self) -> str:
        """Return a unique name."""
        # It must be random: a client that guesses a foreign reply subject could answer the
        # request.
        return "".join(ID_CHARACTERS[byte & 63] for byte in self._random_bytes(ID_LENGTH))

    def _join(self, account: Account) -> None:
        for taken in account.config.imports:
            exporter = self.accounts[taken.account]
            export = exporter.config.export_for(taken, account.name)
            assert export is not None, "imports are checked when they are read"
            relation = Relation(taken.subject, taken.local)
            joined: StreamImport | ServiceImport
            if taken.kind == "stream":
                joined = StreamImport(account, exporter, relation, allow_trace=taken.allow_trace)
            else:
                joined = ServiceImport(
                    self._replies[account],
                    self._replies[exporter],
                    relation,
                    export=export,
                    share=taken.share,
                )
            joined.open()
            self._imports.append(joined)
