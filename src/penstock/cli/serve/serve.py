"""
`penstock serve`: the command line of nats-server, and the server behind it.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from collections.abc import Iterable
from typing import Any

from penstock.cli.commands import EXIT_FAILURE, EXIT_USAGE
from penstock.cli.serve import log
from penstock.config.file.directives import DIRECTIVES, FLAGS, IGNORED_FLAGS, REFUSED_FLAGS
from penstock.config.file.flags import Flag, Given, parse_flags, spell
from penstock.config.file.loading import ServerOptions, load
from penstock.config.server import ProcessConfig
from penstock.errors import ConfigError
from penstock.net.collector import Collector

logger = logging.getLogger("penstock")

COMMAND_FLAGS = (
    Flag(names=("c", "config"), kind=str, doc="Configuration file."),
    Flag(names=("t",), kind=bool, doc="Check the configuration file and exit."),
    Flag(
        names=("sl", "signal"),
        kind=str,
        doc="Send a signal to a server, `<command>[=<pid>]`: ldm, stop, quit, term, reopen, "
        "reload. The pid may be a pid file.",
    ),
    Flag(names=("h", "help"), kind=bool, doc="Show this message."),
    Flag(names=("v", "version"), kind=bool, doc="Show the version."),
)
"""Flags that select an action; all others set directives."""

ALL_FLAGS = (*FLAGS, *COMMAND_FLAGS, *IGNORED_FLAGS)


def run(arguments: list[str]) -> int:
    """Run `penstock serve` and return the exit code."""
    try:
        given, rest = parse_flags(arguments, ALL_FLAGS, REFUSED_FLAGS)
        if rest and rest[0] not in ("help", "version"):
            raise ConfigError(f"unrecognized command: `{rest[0]}`")
    except ConfigError as error:
        print(f"penstock: {error}\nUsage: penstock serve [options]", file=sys.stderr)
        print("See penstock serve --help", file=sys.stderr)
        return EXIT_USAGE
    command: dict[str, Any] = {item.flag.names[0]: item.value for item in given}
    if command.get("h") or "help" in rest:
        print(usage())
        return 0
    if command.get("v") or "version" in rest:
        return _print_version()
    if command.get("sl"):
        return _send_signal(command["sl"], command.get("c"), given)
    if command.get("t"):
        return _check(command.get("c"), given)
    with Collector() as collector:
        return _serve(command.get("c"), given, collector)


def usage() -> str:
    """Return the help of `penstock serve`."""
    lines = ["Usage: penstock serve [options]"]
    for section, flags in sections():
        lines += ["", f"{section}:"]
        lines += [f"    {spell(flag):36}{flag.doc}" for flag in flags]
    return "\n".join(lines)


def sections() -> Iterable[tuple[str, list[Flag]]]:
    """Yield the flags under the headings of the help."""
    names = dict.fromkeys(directive.section for directive in DIRECTIVES.values())
    for name in names:
        flags = [flag for flag in FLAGS if DIRECTIVES[flag.directives[0]].section == name]
        if flags:
            yield name, flags
    yield "Common", list(COMMAND_FLAGS)


def _print_version() -> int:
    from penstock.protocol.version import VERSION

    print(f"penstock: v{VERSION}")
    return 0


def _send_signal(command: str, path: str | None, given: list[Given]) -> int:
    from penstock.cli.serve import signals

    try:
        pid_file = load(path, os.environ, given).process.pid_file
        signals.send(command, pid_file=pid_file)
    except ConfigError as error:
        return _complain(error)
    return 0


def _check(path: str | None, given: list[Given]) -> int:
    """Print whether a configuration file is valid, and its settings."""
    from penstock.cli import config
    from penstock.config.file import explaining, language

    try:
        if path is None:
            raise ConfigError("-t checks a configuration file; hint: name one with -c")
        options = load(path, os.environ, given)
        _check_files(options)
        entries = language.parse_file(path, os.environ)
        if not entries:
            raise ConfigError(f"{path} has no settings, so a server would let everybody in")
        digest = language.digest(entries)
    except ConfigError as error:
        return _complain(error)
    if rows := [row for row in explaining.settings(options) if row.source != explaining.DEFAULT]:
        print(config.as_table(rows))
    config.warn(options)
    # The digest is the one nats-server prints.
    print(f"penstock: configuration file {path} is valid ({digest})", file=sys.stderr)
    return 0


def _check_files(options: ServerOptions) -> None:
    """Read the TLS files, as the server does at its start."""
    websocket = options.server.websocket
    for tls in (options.server.tls, websocket.tls if websocket is not None else None):
        if tls is not None:
            from penstock.net.listeners.tls import server_context

            server_context(tls)


def _serve(path: str | None, given: list[Given], collector: Collector) -> int:
    """Run the server until it stops."""

    def load_again() -> ServerOptions:
        options = load(path, os.environ, given)
        _check_files(options)
        return options

    log.configure(ProcessConfig())
    try:
        options = load_again()
        log.configure(options.process)
    except ConfigError as error:
        for line in str(error).splitlines():
            logger.critical("%s", line)
        return EXIT_FAILURE
    except OSError as error:
        logger.critical("cannot open log file `%s`: %s", error.filename, error.strerror)
        return EXIT_FAILURE
    for warning in options.warnings:
        logger.warning("%s", warning)
    _raise_files_limit()
    # Imported late: importing asyncio takes most of the start-up time.
    import asyncio

    from penstock.cli.serve.process import Process
    from penstock.net.poller import SPIN_S, new_event_loop

    with asyncio.Runner(loop_factory=lambda: new_event_loop(SPIN_S)) as runner:
        return runner.run(Process(options, load_again, collector).run())


def _raise_files_limit() -> None:
    """Raise the limit of open files to its maximum: connections and streams take one each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        logger.warning("The limit of %d open files cannot be raised: %s", soft, error)
    else:
        logger.info("Raised the limit of open files from %d to %d", soft, hard)


def _complain(error: ConfigError) -> int:
    for line in str(error).splitlines():
        print(f"penstock: {line}", file=sys.stderr)
    return EXIT_FAILURE
