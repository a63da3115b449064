"""
Commands with verbs: their arguments, and how a command line is parsed.

A verb is a table of arguments and a function. Help, the reference and the parser are made
from the table. argparse does the parsing; it is imported only when there is something to
parse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.errors import ConfigError
from penstock.protocol.suggestions import nearest

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


QUOTE = "'"
CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument: its names, its help text, and the settings for argparse."""

    names: tuple[str, ...]
    doc: str
    section: str = "Options"
    shown: str = ""
    """The names as help shows them, where the plain form would mislead."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_option(self) -> bool:
        """Whether the argument is given by name."""
        return self.names[0].startswith("-")

    @property
    def takes_value(self) -> bool:
        """Whether a value follows the option's name."""
        return self.settings.get("action") not in ("store_true", "store_false", "store_const")

    @property
    def spelling(self) -> str:
        """The argument as help shows it."""
        value = self.settings.get("metavar", "")
        if not self.is_option:
            repeat = "…" if self.settings.get("nargs") in ("+", "*") else ""
            text = f"{value or self.names[0].upper()}{repeat}"
            return f"[{text}]" if self.settings.get("nargs") in ("?", "*") else text
        # Short names first, because people look for them at the margin.
        names = self.shown or ", ".join(sorted(self.names, key=lambda name: name[:2] == "--"))
        return f"{names} {value}" if value else names


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One action of a command."""

    name: str
    summary: str
    run: Callable[[Any], Any]
    """Called with the command's context: for most verbs, one with a connection."""
    arguments: tuple[Argument, ...] = ()
    aliases: tuple[str, ...] = ()
    endless: bool = False
    """Whether the verb runs until Ctrl-C."""
    connects: bool = True
    """Whether the verb gets a connection, rather than only its arguments."""

    @property
    def positionals(self) -> list[Argument]:
        """The arguments given by position."""
        return [argument for argument in self.arguments if not argument.is_option]

    @property
    def options(self) -> list[Argument]:
        """The arguments given by name."""
        return [argument for argument in self.arguments if argument.is_option]

    @property
    def option_names(self) -> frozenset[str]:
        """Every spelling of every option."""
        return frozenset(name for option in self.options for name in option.names)


def argument(
    *names: str, doc: str, section: str = "Options", shown: str = "", **settings: Any
) -> Argument:
    """Describe an argument; `settings` are those of argparse."""
    return Argument(names=names, doc=doc, section=section, shown=shown, settings=settings)


def find_verb(command: str, verbs: Sequence[Verb], name: str) -> Verb:
    """Return the verb of that name; if there is none, suggest the closest one."""
    known = {each: verb for verb in verbs for each in (verb.name, *verb.aliases)}
    if name in known:
        return known[name]
    if name.startswith("-"):
        example = f"penstock {command} {verbs[0].name} {name}"
        raise ConfigError(f"option `{name}` needs a verb before it; hint: {example}")
    meant = nearest(name, known)
    hint = f"did you mean `{meant}`?" if meant else f"penstock {command} --help lists them"
    raise ConfigError(f"unknown verb `{name}` of `penstock {command}`; hint: {hint}")


def parse(verb: Verb, arguments: Sequence[str]) -> Namespace:
    """Parse the arguments of a verb; raise `ConfigError` for unknown ones."""
    parser = _parser(verb)
    given, unknown = parser.parse_known_intermixed_args(list(arguments))
    if unknown:
        raise ConfigError(_unknown(unknown[0], verb))
    return given


def _unknown(text: str, verb: Verb) -> str:
    if not text.startswith("-"):
        return f"`{text}` is one argument too many"
    name = text.partition("=")[0]
    names = [each for option in verb.options for each in option.names]
    meant = _similar(name, names)
    return f"unknown option `{name}`" + (f"; hint: did you mean `{meant}`?" if meant else "")


def _similar(name: str, names: Sequence[str]) -> str | None:
    """Return the option with a similar name; the dashes that all have make none similar."""
    by_word = {each.strip("-"): each for each in names}
    return by_word.get(nearest(name.strip("-"), by_word) or "")


def _parser(verb: Verb) -> ArgumentParser:
    import argparse

    class QuietParser(argparse.ArgumentParser):
        """A parser that leaves messages and exit codes to us."""

        def error(self, message: str) -> NoReturn:
            raise ConfigError(_reword(message))

    parser = QuietParser(add_help=False, allow_abbrev=False)
    for each in verb.arguments:
        settings = dict(each.settings)
        if "type" in settings:
            settings["type"] = _typed(settings["type"])
        parser.add_argument(*each.names, **settings)
    return parser


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let a reader's error message reach the user; argparse would replace it."""
    from argparse import ArgumentTypeError

    def typed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return typed


def _reword(message: str) -> str:
    """Put an error message of argparse in our words."""
    missing = message.removeprefix("the following arguments are required: ")
    if missing != message:
        return f"missing: {missing.upper() if '-' not in missing else missing}"
    name, _, rest = message.removeprefix("argument ").partition(": ")
    if name == message or not rest:
        return message
    return f"`{name.split('/')[-1]}`: {_choices(rest)}"


def _choices(text: str) -> str:
    """Shorten argparse's sentence about a choice."""
    match = CHOICE.fullmatch(text)
    return (
        f"`{match[1]}` is unknown; hint: one of {match[2].replace(chr(39), '')}" if match else text
    )
