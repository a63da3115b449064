"""Leave fifty events in an outbox: `outbox_writer.py sqlite|postgresql ADDRESS`."""

import sqlite3
import sys

from penstock.bus import Envelope
from penstock.bus.outbox import POSTGRESQL, SQLITE, Outbox

kind, address = sys.argv[1:]
if kind == "sqlite":
    connection, outbox = sqlite3.connect(address), Outbox(SQLITE)
else:
    import psycopg

    connection, outbox = psycopg.connect(address), Outbox(POSTGRESQL)
for number in range(50, 100):
    outbox.add(
        connection, "orders", Envelope(aggregate_id="a", event_type="numbered", payload=number)
    )
connection.commit()
connection.close()
