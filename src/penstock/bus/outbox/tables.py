"""The two tables, and all SQL about them, in SQLite's words and in PostgreSQL's."""

from __future__ import annotations

from dataclasses import dataclass

OUTBOX = """\
CREATE TABLE IF NOT EXISTS penstock_outbox (
    id {identity},
    event_id TEXT NOT NULL UNIQUE,
    topic TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    body {bytes} NOT NULL,
    due_ns BIGINT NOT NULL,
    retry_ns BIGINT NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    last_error TEXT NOT NULL DEFAULT '',
    published_ns BIGINT
)"""

WAITING_INDEX = """\
CREATE INDEX IF NOT EXISTS penstock_outbox_waiting
    ON penstock_outbox (aggregate_id, id) WHERE published_ns IS NULL"""

ORDER_INDEX = """\
CREATE INDEX IF NOT EXISTS penstock_outbox_order
    ON penstock_outbox (id) WHERE published_ns IS NULL"""

INBOX = """\
CREATE TABLE IF NOT EXISTS penstock_inbox (
    service TEXT NOT NULL,
    event_id TEXT NOT NULL,
    seen_ns BIGINT NOT NULL,
    PRIMARY KEY (service, event_id)
)"""

# An event that waits for another attempt holds back all later ones of its aggregate.
TAKE = """\
SELECT id, event_id, topic, aggregate_id, body, attempts FROM penstock_outbox AS one
WHERE published_ns IS NULL AND due_ns <= ? AND NOT EXISTS (
    SELECT 1 FROM penstock_outbox AS earlier
    WHERE earlier.published_ns IS NULL AND earlier.aggregate_id = one.aggregate_id
        AND earlier.id <= one.id AND earlier.retry_ns > ?
)
ORDER BY id LIMIT ?"""

MARK = "UPDATE penstock_outbox SET published_ns = ? WHERE id = ? AND published_ns IS NULL"

POSTPONE = """\
UPDATE penstock_outbox SET attempts = attempts + 1, retry_ns = ?, last_error = ?
WHERE id = ? AND published_ns IS NULL"""

PURGE = "DELETE FROM penstock_outbox WHERE published_ns < ?"

SEE = """\
INSERT INTO penstock_inbox (service, event_id, seen_ns) VALUES (?, ?, ?)
ON CONFLICT (service, event_id) DO NOTHING"""

FORGET = "DELETE FROM penstock_inbox WHERE service = ? AND seen_ns < ?"


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The differences between databases."""

    placeholder: str
    identity: str
    bytes: str
    insert: str
    """Takes event id, topic, aggregate id, body and due time. Idempotent."""

    def sql(self, statement: str) -> str:
        """Return a statement in the form this database's driver needs."""
        return statement.replace("?", self.placeholder)

    @property
    def create(self) -> tuple[str, ...]:
        """The statements that create both tables if they do not exist."""
        outbox = OUTBOX.format(identity=self.identity, bytes=self.bytes)
        return (outbox, WAITING_INDEX, ORDER_INDEX, INBOX)


SQLITE = Dialect(
    placeholder="?",
    identity="INTEGER PRIMARY KEY AUTOINCREMENT",
    bytes="BLOB",
    insert="""\
INSERT INTO penstock_outbox (event_id, topic, aggregate_id, body, due_ns) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (event_id) DO NOTHING""",
)

# PostgreSQL hands out ids before a transaction commits. The lock makes transactions on
# one aggregate wait for each other, so that a later commit never has the smaller id.
POSTGRESQL = Dialect(
    placeholder="%s",
    identity="BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    bytes="BYTEA",
    insert="""\
WITH new (event_id, topic, aggregate_id, body, due_ns) AS (
    VALUES (?::text, ?::text, ?::text, ?::bytea, ?::bigint)
), turn AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended('penstock_outbox:' || aggregate_id, 0)) FROM new
)
INSERT INTO penstock_outbox (event_id, topic, aggregate_id, body, due_ns)
SELECT new.* FROM turn, new
ON CONFLICT (event_id) DO NOTHING""",
)
