"""
The `penstock` command: finds the requested command and runs it.

A command is imported only when it runs, so that it does not slow down the others.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Sequence

from penstock.cli.commands import (
    COMMANDS,
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    HELP_OPTIONS,
    VERSION,
)
from penstock.errors import PenstockError
from penstock.protocol.version import VERSION as PENSTOCK


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if executable() == "nats-server":
        # Under this name Penstock accepts nats-server's command line.
        arguments.insert(0, "serve")
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it. Python must not flush the rest, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    return code


def _run(arguments: list[str]) -> int:
    leading: list[str] = []
    if arguments and arguments[0].startswith("-") and arguments[0] not in (*HELP_OPTIONS, *VERSION):
        from penstock.cli.runner import split_leading

        leading, arguments = split_leading(arguments)
    name = arguments.pop(0) if arguments else "help"
    if name in (*HELP_OPTIONS, "help"):
        if not arguments:
            print(usage())
            return 0
        name, arguments = arguments[0], [*arguments[1:], HELP_OPTIONS[0]]
    if name in VERSION:
        print(f"penstock {PENSTOCK}")
        return 0
    if name not in COMMANDS:
        return _unknown(name)
    return _run_command(name, [*leading, *arguments])


def _run_command(name: str, arguments: list[str]) -> int:
    command = COMMANDS[name]
    # What is imported stays, so the garbage collector would look through it in vain.
    gc.disable()
    module = importlib.import_module(command.module)
    gc.enable()
    code: int
    if command.verb:
        from penstock.cli.runner import run_verb

        code = run_verb(name, getattr(module, command.verb), arguments)
    else:
        code = module.run(arguments)
    return code


def executable() -> str:
    """Return the name under which this process was started."""
    name = os.path.basename(sys.argv[0])
    return "penstock" if name == "__main__.py" else name


def usage() -> str:
    """Return the help of the command itself."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join(
        ["Usage: penstock <command> [options]", "", *lines, "", "More: penstock <command> --help"]
    )


def _unknown(name: str) -> int:
    from penstock.protocol.suggestions import nearest

    kind = "option" if name.startswith("-") else "command"
    meant = nearest(name, COMMANDS)
    hint = f"did you mean `{meant}`?" if meant else "penstock --help lists the commands"
    print(f"penstock: unknown {kind} `{name}`\nhint: {hint}", file=sys.stderr)
    return EXIT_USAGE
