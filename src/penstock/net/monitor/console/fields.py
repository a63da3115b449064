"""The fields of a request to the console, checked by type and by size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from penstock.net.monitor.console.signing import Refused

Fields = Mapping[str, Any]


def parse(body: bytes) -> dict[str, Any]:
    """Return the fields of a body, which is a JSON object."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Refused(400, "a request is a JSON object")
    return found


def text(fields: Fields, name: str, default: str | None = None) -> str:
    """Return a text; it must be there unless there is a default."""
    value = fields.get(name, default)
    if not isinstance(value, str) or (default is None and not value):
        raise Refused(400, f"`{name}` is missing, or no text")
    return value


def number(fields: Fields, name: str, default: int | None = None, *, most: int = 2**63 - 1) -> int:
    """Return a whole number from 0 on; it must be there unless there is a default."""
    value = fields.get(name, default)
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise Refused(400, f"`{name}` is missing, or no number from 0 to {most}")
    return value


def numbers(fields: Fields, name: str, *, count_max: int) -> list[int]:
    """Return a list of whole numbers."""
    found = fields.get(name)
    if not isinstance(found, list) or not 0 < len(found) <= count_max:
        raise Refused(400, f"`{name}` is no list of 1 to {count_max} numbers")
    return [number({name: each}, name) for each in found]
