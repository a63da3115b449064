"""The JSON of answers; parts that seldom change, like configurations, are encoded once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value that is already JSON."""

    text: str


def encode(document: Mapping[str, Any]) -> str:
    """Return the JSON of an object, some of whose values may be `Encoded`."""
    if Encoded not in map(type, document.values()):
        return _ENCODER.encode(document)
    parts: list[str] = []
    plain: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Encoded):
            parts += (members(plain), f'"{name}":{value.text}')
            plain = {}
        else:
            plain[name] = value
    parts.append(members(plain))
    return "{" + ",".join(filter(None, parts)) + "}"


def encode_all(documents: list[dict[str, Any]]) -> Encoded:
    """Return a list of objects, some of whose values may be `Encoded`."""
    return Encoded("[" + ",".join(map(encode, documents)) + "]")


def members(document: Mapping[str, Any]) -> str:
    """Return the members of an object, without the braces around them."""
    return _ENCODER.encode(document)[1:-1] if document else ""
