"""The kinds of values that settings take: programs are not all checked by a type checker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from penstock.errors import ConfigError

NAMES = {
    bool: "True or False",
    float: "a number",
    int: "a whole number",
    str: "text",
    NoneType: "None",
}


def check_kinds(config: Any) -> None:
    """Refuse a value that is not of the kind its setting has."""
    for name, hint in _hints(config.__class__).items():
        value = getattr(config, name)
        if not is_of(value, hint):
            # Not any value: it may be a password.
            is_choice = get_origin(hint) is Literal and isinstance(value, str)
            given = repr(value) if is_choice else f"a {type(value).__name__}"
            raise ConfigError(f"`{name}` must be {described(hint)}, not {given}")


def is_of(value: Any, hint: Any) -> bool:
    """Return whether a value is of the kind that an annotation names."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return isinstance(value, str) and value in inner
    if kind in (Union, UnionType):
        return any(is_of(value, one) for one in inner)
    if kind is tuple:
        return isinstance(value, tuple | list) and all(is_of(one, inner[0]) for one in value)
    if issubclass(kind, Mapping):
        return isinstance(value, Mapping) and all(is_of(one, inner[1]) for one in value.values())
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, kind)


def described(hint: Any) -> str:
    """Return the words for a kind in an error message."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return f"one of {', '.join(inner)}"
    if kind in (Union, UnionType):
        return " or ".join(described(one) for one in inner)
    if kind is tuple:
        return f"a tuple, each {described(inner[0])}"
    if issubclass(kind, Mapping):
        return f"a mapping, each value {described(inner[1])}"
    return NAMES.get(kind, f"a `{kind.__name__}(…)`")


@lru_cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}
