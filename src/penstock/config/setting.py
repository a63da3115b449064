"""
How a setting is declared: a dataclass field that knows its directive, its flags and its words.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields
from typing import Any

from penstock.errors import ConfigError


def setting(
    default: Any,
    doc: str,
    *,
    directive: str | None = None,
    aliases: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    positive: bool = False,
    secret: bool = False,
    default_factory: Any = MISSING,
) -> Any:
    """
    Declare a field that the file reader, the command line and the docs derive from.

    A `secret` is left out of every `repr`. URLs are secrets, for they may have a password.
    """
    metadata = {
        "doc": doc,
        "directive": directive,
        "aliases": aliases,
        "flags": flags,
        "positive": positive,
    }
    return field(
        default=default, default_factory=default_factory, repr=not secret, metadata=metadata
    )


class Checked:
    """Settings that are looked at as they are made."""

    def __post_init__(self) -> None:
        check_bounds(self)


def check_bounds(config: Any) -> None:
    """Refuse numbers that are negative, or zero where that means nothing."""
    for item in fields(config):
        value = getattr(config, item.name)
        if isinstance(value, int | float) and value < 0:
            raise ConfigError(f"`{key_of(item)}` must not be negative: {value}")
        if item.metadata.get("positive") and value == 0:
            raise ConfigError(f"`{key_of(item)}` must be more than 0")


def key_of(item: Field[Any]) -> str:
    """Return what a field is called in a file."""
    return item.metadata.get("directive") or item.name
