"""The options of a monitoring request, read as strictly as nats-server reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping

Query = Mapping[str, str]

TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE = frozenset({"", "0", "f", "F", "FALSE", "false", "False"})
INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
LIMIT = 1024
"""How many entries a list has unless more are asked for."""
LIMIT_MAX = 65_536


class QueryError(ValueError):
    """An option of a request makes no sense; the text is what the client is told."""


def boolean(query: Query, name: str) -> bool:
    """Return an option that is true or false; false if it is not there."""
    text = query.get(name, "")
    if text not in TRUE | FALSE:
        raise QueryError(f"Error decoding boolean for '{name}': {text}")
    return text in TRUE


def integer(query: Query, name: str) -> int:
    """Return an option that is a number; 0 if it is not there."""
    text = query.get(name, "")
    if text and not INTEGER.fullmatch(text):
        raise QueryError(f"Error decoding int for '{name}': {text}")
    return int(text or 0)


def page(query: Query) -> tuple[int, int]:
    """Return the offset and the limit of a list. Numbers that mean nothing mean the default."""
    offset, limit = integer(query, "offset"), integer(query, "limit")
    return max(offset, 0), min(limit, LIMIT_MAX) if limit > 0 else LIMIT
