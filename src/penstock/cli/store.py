"""`penstock store`: check the files of a stopped server, and repair them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeAlias

from penstock.cli.arguments import Verb, argument
from penstock.cli.commands import EXIT_FAILURE
from penstock.cli.connection import JSON
from penstock.cli.runner import run_command, run_plain
from penstock.cli.terminal import table
from penstock.config.file.loading import ENVIRONMENT_PREFIX, load
from penstock.config.jetstream import JetStreamConfig
from penstock.errors import StoreError, reason
from penstock.jetstream.files.storecheck import StoreReport, check, is_store, repair
from penstock.jetstream.files.storekey import find_key, is_keyed
from penstock.jetstream.files.streamcheck import check_stream
from penstock.jetstream.store.file.disk import LOCK, Disk, RealDisk
from penstock.jetstream.store.file.encryption import Keys, encrypted

if TYPE_CHECKING:
    from argparse import Namespace

Action: TypeAlias = Callable[[Disk, str, bool], int]


def run(arguments: list[str]) -> int:
    """Run `penstock store` and return the exit code: 1 if something is wrong."""
    return run_command("store", VERBS, arguments, run_plain)


def check_files(arguments: Namespace) -> int:
    """Report the damage of a store."""
    return _run(_check, arguments)


def repair_files(arguments: Namespace) -> int:
    """Save the sound records of a damaged store."""
    return _run(_repair, arguments)


DIRECTORY = argument(
    "directory", metavar="DIR", doc="Store directory of a stopped server, or that of a stream."
)
CONFIG = argument(
    "-c",
    "--config",
    metavar="FILE",
    doc="The server's configuration: it has the key of an encrypted store.",
)

VERBS = (
    Verb(
        name="check",
        summary="Read every byte, and report damage.",
        run=check_files,
        arguments=(DIRECTORY, CONFIG, JSON),
    ),
    Verb(
        name="repair",
        summary="Save all sound records; the rest is kept in files ending in `.lost`.",
        run=repair_files,
        arguments=(DIRECTORY, CONFIG, JSON),
    ),
)


def _run(action: Action, arguments: Namespace) -> int:
    environ = {**os.environ, f"{ENVIRONMENT_PREFIX}JETSTREAM__ENABLED": "true"}
    path = arguments.directory.rstrip("/") or "/"
    try:
        settings = load(arguments.config, environ, ()).server.jetstream
        return _locked(path, action, settings, as_json=arguments.json)
    except OSError as error:
        raise StoreError(f"`{path}`: {reason(error)}") from None


def _locked(
    directory: str, action: Action, settings: JetStreamConfig | None, *, as_json: bool
) -> int:
    """Run an action while no server can use the files."""
    if not find_stores(directory) and not find_streams(directory):
        raise StoreError(f"there is no store in `{directory}`")
    root = _root(directory)
    lock = RealDisk().lock(root) if root is not None else None
    try:
        return action(_disk(root, settings), directory, as_json)
    finally:
        if lock is not None:
            lock.release()


def _disk(root: str | None, settings: JetStreamConfig | None) -> Disk:
    """Return the disk as the server sees it."""
    disk = RealDisk()
    if root is None or not is_keyed(disk, root):
        return disk
    if settings is None or not settings.key:
        raise StoreError(
            f"`{root}` is encrypted; hint: name the server's configuration with `-c`, or set "
            "PENSTOCK__JETSTREAM__KEY"
        )
    keys = Keys(settings.cipher)
    find_key(disk, root, keys, settings.key, settings.prev_key)
    return encrypted(disk, keys)


def find_stores(directory: str) -> list[str]:
    """Return the directories at or below this one that hold messages or consumers."""
    return sorted(path for path, _, names in os.walk(directory) if is_store(names))


def find_streams(directory: str) -> list[str]:
    """Return the directories of streams at or below this one; also its parent, if that is one."""
    path = os.path.abspath(directory)
    paths = [os.path.dirname(path), *(each for each, _, _ in os.walk(path))]
    return sorted(each for each in paths if os.path.basename(os.path.dirname(each)) == "streams")


def _root(directory: str) -> str | None:
    """Return the directory that the server which owns these files locks; None without one."""
    path = os.path.abspath(directory)
    candidates = [f"{path}/jetstream", path]
    while path != "/":
        path = os.path.dirname(path)
        candidates.append(path)
    return next((each for each in candidates if os.path.exists(f"{each}/{LOCK}")), None)


def _check(disk: Disk, directory: str, as_json: bool) -> int:
    reports = [check(disk, store) for store in find_stores(directory)]
    streams = (_check_stream(disk, stream) for stream in find_streams(directory))
    reports += [report for report in streams if report.problems]
    problems = [problem for report in reports for problem in report.problems]
    if as_json:
        print(json.dumps([asdict(report) for report in reports], indent=2))
    else:
        header = ("DIRECTORY", "SEGMENTS", "MESSAGES", "FIRST", "LAST", "BYTES", "CONSUMERS")
        print(table(header, map(_row, reports)))
        print("\n".join(["", *problems]) if problems else "\nEverything checks out.")
    return EXIT_FAILURE if problems else 0


def _check_stream(disk: Disk, directory: str) -> StoreReport:
    return StoreReport(directory, problems=check_stream(disk, directory))


def _row(report: StoreReport) -> tuple[str, ...]:
    figures = (
        report.segments,
        report.messages,
        report.first_sequence,
        report.last_sequence,
        report.file_bytes,
        report.consumers,
    )
    return (report.directory, *map(str, figures))


def _repair(disk: Disk, directory: str, as_json: bool) -> int:
    done = {store: repair(disk, store) for store in find_stores(directory)}
    if as_json:
        print(json.dumps(done, indent=2))
    else:
        lines = [line for lines in done.values() for line in lines]
        print("\n".join(lines) or "Nothing had to be repaired.")
    return 0
