"""Subjects that several parts must agree on. A part's own subjects stay with that part."""

from __future__ import annotations

API = "$JS.API"
"""Prefix of JetStream requests."""
ACK = "$JS.ACK."
"""Prefix of acks, that is, of the reply subjects of deliveries."""
FLOW_CONTROL = "$JS.FC."
"""Prefix of flow control replies."""
KEY_VALUE = "$KV."
"""Prefix of the keys of all buckets."""
OBJECTS = "$O."
"""Prefix of the objects of all buckets."""
INBOX = "_INBOX"
"""Default prefix of the reply subjects of clients."""
PIPELINE = "$PENSTOCK.PIPELINE"
"""Subject prefix of progress reports from pipelines."""


def api_of(domain: str) -> str:
    """Return the prefix of JetStream requests in a domain."""
    return f"$JS.{domain}.API" if domain else API
