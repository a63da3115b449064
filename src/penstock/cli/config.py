"""
`penstock config`: the effective settings of a server, and where each of them came from.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from penstock.cli.commands import EXIT_FAILURE, EXIT_USAGE, HELP_OPTIONS
from penstock.cli.runner import split_leading
from penstock.cli.terminal import table
from penstock.config.file.directives import FLAGS, IGNORED_FLAGS, REFUSED_FLAGS
from penstock.config.file.explaining import DEFAULT, Setting, settings
from penstock.config.file.flags import Flag, parse_flags
from penstock.config.file.loading import ServerOptions, load
from penstock.errors import ConfigError

USAGE = """\
Usage: penstock config explain [-c FILE] [--json] [options of `penstock serve`]

Prints every setting in effect and where it came from: the default, the place in the file,
an environment variable or a flag. `--set` leaves out the defaults."""

EXPLAIN_FLAGS = (
    Flag(names=("c", "config"), kind=str, doc="Configuration file."),
    Flag(names=("json",), kind=bool, doc="Print JSON."),
    Flag(names=("set",), kind=bool, doc="Print only settings that were set."),
    Flag(names=("h", "help"), kind=bool, doc="Show this message."),
)


def run(arguments: list[str]) -> int:
    """Run `penstock config` and return the exit code."""
    if not arguments or arguments[0] in (*HELP_OPTIONS, "help"):
        print(USAGE)
        return 0
    leading, words = split_leading(arguments)
    arguments = [*words, *leading]
    try:
        if arguments[0] != "explain":
            raise ConfigError(f"unknown command: `{arguments[0]}`")
        flags = (*FLAGS, *IGNORED_FLAGS, *EXPLAIN_FLAGS)
        given, rest = parse_flags(arguments[1:], flags, REFUSED_FLAGS)
        if rest:
            raise ConfigError(f"unexpected argument: `{rest[0]}`")
    except ConfigError as error:
        print(f"penstock: {error}\n{USAGE}", file=sys.stderr)
        return EXIT_USAGE
    command = {item.flag.names[0]: item.value for item in given if item.flag in EXPLAIN_FLAGS}
    if command.get("h"):
        print(USAGE)
        return 0
    path = str(command["c"]) if "c" in command else None
    try:
        options = load(path, os.environ, given)
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"penstock: {line}", file=sys.stderr)
        return EXIT_FAILURE
    rows = [row for row in settings(options) if row.source != DEFAULT or not command.get("set")]
    print(as_json(rows, options) if command.get("json") else as_table(rows))
    warn(options)
    return 0


def as_table(rows: list[Setting]) -> str:
    """Return the settings for people."""
    cells = [(row.directive, _text(row.value), row.source) for row in rows]
    return table(("SETTING", "VALUE", "FROM"), cells, left=3)


def as_json(rows: list[Setting], options: ServerOptions) -> str:
    """Return the settings for programs."""
    shown = {row.directive: {"value": row.value, "from": row.source} for row in rows}
    return json.dumps({"settings": shown, "warnings": list(options.warnings)}, indent=2)


def warn(options: ServerOptions) -> None:
    """Print a warning for each setting that has no effect."""
    for warning in options.warnings:
        print(f"penstock: warning: {warning}", file=sys.stderr)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {each}" for name, each in value.items())
    return str(value)
