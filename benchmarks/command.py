"""The command line that the comparisons share."""

import argparse
import json
import shlex
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.bench.report.machine import raise_open_files_limit
from penstock.bench.report.ratios import OURS, THEIRS
from penstock.bench.scenarios.turns import AnySide
from penstock.net.process import Program, find_command

ROUNDS = 3


def chosen(named: Iterable[AnySide], options: argparse.Namespace) -> list[AnySide]:
    """Return what `--only` asks for, by a part of the name."""
    return [one for one in named if options.only.lower() in one.name.lower()]


def command_line(
    module: str, doc: str | None, *, quick: str, only: str = ""
) -> argparse.ArgumentParser:
    """Return a parser with the options that all comparisons have."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"rounds (default: {ROUNDS})")
    if only:
        help_text = f"run only {only} with this text in their name"
        parser.add_argument("--only", metavar="SUBSTRING", default="", help=help_text)
    return parser


def add_servers(parser: argparse.ArgumentParser) -> None:
    """Let both servers be chosen."""
    parser.add_argument("--ours", default="penstock serve", help="the server to measure")
    parser.add_argument("--theirs", default="nats-server", help="the server to compare it with")


def begin(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line, and prepare this process to start others."""
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    # A container or service manager stops us with SIGTERM: clean up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise_open_files_limit()
    return options


def both_servers(options: argparse.Namespace) -> tuple[Program, Program]:
    """Return our server and theirs; raise if one is not on this machine."""
    return program(OURS, options.ours), program(THEIRS, options.theirs)


def program(name: str, words: str) -> Program:
    """Return a program from its command line; raise if it is not on this machine."""
    command, *arguments = shlex.split(words)
    return Program(name, (find_command(command), *arguments))


def write_json(options: argparse.Namespace, figures: object) -> None:
    """Write the figures for programs, if asked to."""
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
