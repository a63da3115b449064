"""The options of a monitoring request, parsed as strictly as by nats-server."""

from __future__ import annotations

import re
from collections.abc import Mapping

Query = Mapping[str, str]

TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE = frozenset({"", "0", "f", "F", "FALSE", "false", "False"})
INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
LIMIT = 1024
"""The default number of entries in a list."""
LIMIT_MAX = 65_536


class QueryError(ValueError):
    """An invalid option of a request; the client gets the text."""


def boolean(query: Query, name: str) -> bool:
    """Return a boolean option; false if it is missing."""
    text = query.get(name, "")
    if text not in TRUE | FALSE:
        raise QueryError(f"Error decoding boolean for '{name}': {text}")
    return text in TRUE


def integer(query: Query, name: str) -> int:
    """Return an integer option; 0 if it is missing."""
    text = query.get(name, "")
    if text and not INTEGER.fullmatch(text):
        raise QueryError(f"Error decoding int for '{name}': {text}")
    return int(text or 0)


def page(query: Query) -> tuple[int, int]:
    """Return the offset and the limit of a list. Meaningless numbers mean the default."""
    offset, limit = integer(query, "offset"), integer(query, "limit")
    return max(offset, 0), min(limit, LIMIT_MAX) if limit > 0 else LIMIT
