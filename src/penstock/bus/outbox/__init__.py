"""
Outbox and inbox: events that are part of the user's own database transaction.

An event added to the `Outbox` exists if and only if the transaction commits; a
`Relay` publishes it afterwards. An `Inbox` remembers in the handler's transaction
which events were handled, so that one delivered twice has its effect once.
"""

from penstock.bus.outbox.inbox import Inbox
from penstock.bus.outbox.outbox import Outbox
from penstock.bus.outbox.postgres import PostgresStore
from penstock.bus.outbox.relay import Relay, RelayConfig
from penstock.bus.outbox.sqlite import SqliteStore
from penstock.bus.outbox.tables import POSTGRESQL, SQLITE, Dialect

__all__ = [
    "POSTGRESQL",
    "SQLITE",
    "Dialect",
    "Inbox",
    "Outbox",
    "PostgresStore",
    "Relay",
    "RelayConfig",
    "SqliteStore",
]
