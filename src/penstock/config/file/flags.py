"""
Command-line flags by the rules of Go's `flag` package, which nats-server uses.

One dash or two mean the same; a value follows after `=` or as the next argument;
a boolean flag takes a value only after `=`; flags end at the first argument that is
not one, or at `--`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.config.frozen import dataclass
from penstock.errors import ConfigError
from penstock.protocol.suggestions import nearest

TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})

FlagValue = bool | int | str


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag, all its names, and the directives it sets."""

    names: tuple[str, ...]
    kind: type[bool] | type[int] | type[str]
    doc: str
    directives: tuple[str, ...] = ()


PLACEHOLDERS: dict[type, str] = {bool: "", int: " <number>", str: " <text>"}


def spell(flag: Flag) -> str:
    """Return the names of a flag as help shows them, short ones with one dash."""
    names = [f"-{name}" if len(name) < 3 or name.isupper() else f"--{name}" for name in flag.names]
    return ", ".join(names) + PLACEHOLDERS[flag.kind]


class Given(NamedTuple):
    """A flag as given on the command line."""

    flag: Flag
    value: FlagValue
    spelling: str


def parse_flags(
    arguments: Iterable[str], flags: Iterable[Flag], refused: Mapping[str, str] | None = None
) -> tuple[list[Given], list[str]]:
    """Return the flags given, in order, and the arguments after them."""
    known = {name: flag for flag in flags for name in flag.names}
    rest = list(arguments)
    given: list[Given] = []
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        argument = rest.pop(0)
        if argument == "--":
            break
        name, equals, text = _split(argument)
        flag = _find(name, known, refused or {})
        if not equals and flag.kind is bool:
            text = "true"
        elif not equals:
            if not rest:
                raise ConfigError(f"flag needs an argument: -{name}")
            text = rest.pop(0)
        given.append(Given(flag, _convert(name, text, flag.kind), f"flag -{name}"))
    return given, rest


def _split(argument: str) -> tuple[str, str, str]:
    """Return name, equals sign and value of one argument."""
    name, equals, text = argument.removeprefix("-").removeprefix("-").partition("=")
    if not name or name.startswith("-"):
        raise ConfigError(f"bad flag syntax: {argument}")
    return name, equals, text


def _find(name: str, known: Mapping[str, Flag], refused: Mapping[str, str]) -> Flag:
    if name in known:
        return known[name]
    if name in refused:
        raise ConfigError(f"flag -{name} is not supported: {refused[name]}")
    meant = nearest(name, known)
    raise ConfigError(
        f"flag provided but not defined: -{name}" + (f"; did you mean -{meant}?" if meant else "")
    )


def _convert(name: str, text: str, kind: type) -> FlagValue:
    """Convert `text` to the flag's type, by Go's rules."""
    if kind is str:
        return text
    if kind is bool:
        if text in TRUE or text in FALSE:
            return text in TRUE
        raise ConfigError(f'invalid boolean value "{text}" for flag -{name}')
    try:
        return int(text, 0)
    except ValueError:
        raise ConfigError(f'invalid value "{text}" for flag -{name}: not a number') from None
