"""
The context of one account's streams and consumers.

The engine makes one and hands it to its streams. It gives them the time (`clock_ns`, `timers.at`),
sends their messages (`account.publish`, `account.deliver_as`), answers whether there is interest
(`account.has_interest`), watches it (`account.routes.watch`), and takes note of changes that are
not safe yet (`touch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.jetstream.advisories import Advisories

if TYPE_CHECKING:
    from penstock.core.account import Account
    from penstock.jetstream.commit import Durable
    from penstock.jetstream.files.streamfiles import StreamFiles
    from penstock.jetstream.quota import Quota
    from penstock.jetstream.shared import Shared

NAME_CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Context:
    """One account's messages, time, files and limits."""

    def __init__(
        self, account: Account, shared: Shared, *, files: StreamFiles, quota: Quota
    ) -> None:
        self.account = account
        self.shared = shared
        self.files = files
        self.quota = quota
        self.domain = shared.config.domain or ""
        self.waits_for_sync = shared.waits_for_sync
        self.clock_ns = shared.clock_ns
        self.random = shared.random
        self.timers = shared.timers
        self.api_requests = self.api_errors = 0
        """The number of API requests of the account so far, and of those refused."""
        self.advisories = Advisories(
            account, domain=self.domain, clock_ns=self.clock_ns, new_id=self.new_id
        )

    @property
    def account_name(self) -> str:
        """The name of the account."""
        return self.account.name

    def new_id(self, length: int = 22) -> str:
        """Return a random name: 22 characters for an event, 8 for an ephemeral consumer."""
        return "".join(NAME_CHARACTERS[int(self.random() * 62)] for _ in range(length))

    def is_likely(self, percent: int) -> bool:
        """Return True in this percentage of calls."""
        return self.random() * 100 < percent

    def touch(self, item: Durable) -> None:
        """Make the next commit include the changes of an item."""
        self.shared.dirty[item] = self.account.name

    def retry(self, item: Durable) -> None:
        """Commit an item again after a while."""
        self.shared.retry(item, self.account.name)
