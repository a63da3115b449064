"""Declare a setting: a dataclass field with its directive, its flags and its help text."""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields
from math import isfinite
from typing import Any

from penstock.config.kinds import check_kinds
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
    size: bool = False,
    default_factory: Any = MISSING,
) -> Any:
    """
    Declare a field from which the file reader, the command line and the docs derive.

    A `secret` is left out of every `repr`. URLs are secrets, because they may contain a
    password.
    A `size` is a number of bytes.
    """
    metadata = {
        "doc": doc,
        "directive": directive,
        "aliases": aliases,
        "flags": flags,
        "positive": positive,
        "size": size,
    }
    return field(
        default=default, default_factory=default_factory, repr=not secret, metadata=metadata
    )


class Checked:
    """Settings that are checked when they are created."""

    def __post_init__(self) -> None:
        check_kinds(self)
        check_bounds(self)


def check_bounds(config: Any) -> None:
    """Refuse negative and endless numbers, and zero where it has no meaning."""
    for item in fields(config):
        value = getattr(config, item.name)
        if isinstance(value, float) and not isfinite(value):
            raise ConfigError(f"`{key_of(item)}` must be a finite number: {value}")
        if isinstance(value, int | float) and value < 0:
            raise ConfigError(f"`{key_of(item)}` must not be negative: {value}")
        if item.metadata.get("positive") and value == 0:
            raise ConfigError(f"`{key_of(item)}` must be more than 0")


def key_of(item: Field[Any]) -> str:
    """Return the name of a field in a file."""
    return item.metadata.get("directive") or item.name
