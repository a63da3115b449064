"""Run a verb: from the words of a command line to an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

from penstock.cli import manual
from penstock.cli.arguments import Verb, find_verb, parse
from penstock.cli.commands import COMMANDS, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, HELP_OPTIONS
from penstock.cli.connection import CONNECTION
from penstock.cli.hints import Complaint, complaint_of, explain
from penstock.cli.terminal import CYAN, RED, coloured
from penstock.errors import ConfigError, PenstockError, PermissionDenied

if TYPE_CHECKING:
    from argparse import Namespace

    from penstock.cli.context import Context

NAME = "penstock:"

Execute: TypeAlias = "Callable[[str, Verb, Namespace], int]"
"""Runs a verb with its context, and returns the exit code."""


def run_connected(path: str, verb: Verb, arguments: Namespace) -> int:
    """Run a verb that needs a connection to a server."""
    import asyncio

    # The client also reports to us what it logs; a person wants to read it once.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    return asyncio.run(_connect_and_run(path, verb, arguments))


def run_plain(path: str, verb: Verb, arguments: Namespace) -> int:
    """Run a verb that needs only its arguments; it returns the exit code."""
    code: int = verb.run(arguments)
    return code


def run_command(
    command: str, verbs: Sequence[Verb], words: list[str], execute: Execute = run_connected
) -> int:
    """Run one of a command's verbs. Shared options may also come before the verb."""
    leading, words = split_leading(words)
    wants_help = bool(words) and words[0] in (*HELP_OPTIONS, "help")
    if not words or (wants_help and len(words) == 1):
        print(manual.command_help(command, COMMANDS[command].summary, verbs))
        return 0
    if wants_help:
        words = [words[1], HELP_OPTIONS[0]]
    try:
        verb = find_verb(command, verbs, words[0])
    except ConfigError as error:
        return complain(complaint_of(error, ()), EXIT_USAGE)
    return run_verb(f"{command} {verb.name}", verb, [*leading, *words[1:]], execute)


def run_verb(path: str, verb: Verb, words: list[str], execute: Execute = run_connected) -> int:
    """Run a verb; `path` is the command as the user typed it."""
    options = words[: words.index("--")] if "--" in words else words
    if set(options) & set(HELP_OPTIONS):
        print(manual.verb_help(path, verb))
        return 0
    if not verb.connects:
        execute = run_plain
    try:
        arguments = parse(verb, words)
    except ConfigError as error:
        complaint = complaint_of(error, verb.option_names)
        hint = complaint.hint or f"penstock {path} --help"
        return complain(Complaint(complaint.text, hint), EXIT_USAGE)
    try:
        return execute(path, verb, arguments)
    except PenstockError as error:
        return complain(complaint_of(error, verb.option_names), _code(error))
    except KeyboardInterrupt:
        return 0 if verb.endless else EXIT_INTERRUPTED


def split_leading(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split off the shared options in front of a command or a verb, with their values."""
    takes_value = {name: option.takes_value for option in CONNECTION for name in option.names}
    index = 0
    while index < len(words) and (name := words[index].partition("=")[0]) in takes_value:
        index += 2 if takes_value[name] and "=" not in words[index] else 1
    return list(words[:index]), list(words[index:])


def complain(complaint: Complaint, code: int = EXIT_FAILURE) -> int:
    """Print an error and return the exit code."""
    first, newline, hint = str(complaint).partition("\nhint: ")
    name, text = first[: len(NAME)], first[len(NAME) :]
    hint = coloured("hint: ", CYAN, sys.stderr) + hint if newline else ""
    print(f"{coloured(name, RED, sys.stderr)}{text}{newline[:1]}{hint}", file=sys.stderr)
    return code


async def _connect_and_run(path: str, verb: Verb, arguments: Namespace) -> int:
    from penstock.cli.context import open_context

    async with open_context(arguments, os.environ, command=path) as context:
        try:
            code: int | None = await verb.run(context)
        except PenstockError as error:
            return complain(await _explain(error, context, verb.option_names), _code(error))
    return code or 0


async def _explain(error: PenstockError, context: Context, options: Collection[str]) -> Complaint:
    """Explain an error; if the names cannot be requested, leave it as it is."""
    denied = next((each for each in context.errors if isinstance(each, PermissionDenied)), None)
    if denied is not None:
        # For a denied request the client only sees that no answer came.
        return Complaint(str(denied))
    try:
        complaint = await explain(error, context, options)
    except PenstockError:
        return complaint_of(error, options)
    return complaint.fitting(options)


def _code(error: PenstockError) -> int:
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE
