"""
The `penstock` command: finds the requested command and runs it.

A command is imported only when it runs, so that it does not slow down the others.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.errors import PenstockError


class Command(NamedTuple):
    """A command: its module, its function, and a summary in one line."""

    module: str
    summary: str
    function: str = "run"


COMMANDS = {
    "serve": Command("penstock.cli.serve.serve", "Run a server."),
    "demo": Command(
        "penstock.cli.demo.demo",
        "Show everything on this machine: broker, event bus, Spark, report.",
    ),
    "pub": Command("penstock.cli.messages", "Publish a message.", "run_publish"),
    "sub": Command("penstock.cli.messages", "Print messages as they arrive.", "run_subscribe"),
    "request": Command(
        "penstock.cli.messages", "Publish a request and print the replies.", "run_request"
    ),
    "stream": Command("penstock.cli.stream.stream", "Create, show, edit, read and purge streams."),
    "consumer": Command(
        "penstock.cli.consumer.consumer", "Create, show, edit and pull from consumers."
    ),
    "kv": Command("penstock.cli.kv.kv", "Read and write buckets of keys and values."),
    "store": Command("penstock.cli.store", "Check and repair the files of a server."),
    "bench": Command("penstock.cli.bench", "Measure and compare servers, with a history."),
    "topics": Command("penstock.cli.topics", "List, plan, apply and check the topics of a bus."),
    "dlq": Command("penstock.cli.dlq", "List, show, replay and discard dead letters."),
    "pipeline": Command("penstock.cli.pipeline", "Run the ready pipelines on Spark."),
    "lake": Command("penstock.cli.lake", "Inspect a Parquet lake without Spark."),
    "config": Command("penstock.cli.config", "Explain the settings in effect."),
    "reference": Command(
        "penstock.cli.reference.reference", "Print the reference of settings or commands."
    ),
}

HELP_OPTIONS = ("-h", "-help", "--help")
EXIT_FAILURE, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


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
    name = arguments.pop(0) if arguments else "help"
    if name in (*HELP_OPTIONS, "help"):
        print(usage())
        return 0
    if name in ("version", "-v", "-version", "--version"):
        name, arguments = "serve", ["--version"]
    if name not in COMMANDS:
        return _unknown(name)
    module = importlib.import_module(COMMANDS[name].module)
    code: int = getattr(module, COMMANDS[name].function)(arguments)
    return code


def executable() -> str:
    """Return the name under which this process was started."""
    name = Path(sys.argv[0]).name
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

    meant = nearest(name, COMMANDS)
    hint = f"; did you mean `{meant}`?" if meant else ""
    print(f"penstock: unknown command `{name}`{hint}\n{usage()}", file=sys.stderr)
    return EXIT_USAGE
