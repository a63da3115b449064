"""`penstock store`: check the files of a stopped server, and repair them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TypeAlias

from penstock.cli.main import EXIT_FAILURE, EXIT_USAGE, HELP_OPTIONS
from penstock.config.file.loading import ENVIRONMENT_PREFIX, load
from penstock.config.jetstream import JetStreamConfig
from penstock.errors import ConfigError, StoreError
from penstock.jetstream.files.storecheck import Report, check, is_store, repair
from penstock.jetstream.files.storekey import find_key, is_keyed
from penstock.jetstream.files.streamcheck import check_stream
from penstock.jetstream.store.file.disk import LOCK, Disk, RealDisk
from penstock.jetstream.store.file.encryption import Keys, encrypted
from penstock.protocol.tables import render

USAGE = """\
Usage: penstock store check DIR [-c FILE] [--json]    say what does not check out
       penstock store repair DIR [-c FILE] [--json]   save what can be saved, and say what could not

DIR is a store directory, or a stream's in it; every byte is read. The server must be stopped.
A repair throws nothing away: what it takes out is kept in files ending in `.lost`.

  -c, --config FILE   the server's configuration: it has the key of an encrypted store"""

Action: TypeAlias = Callable[[Disk, str, bool], int]


def run(arguments: Sequence[str]) -> int:
    """Run `penstock store` and return the exit code: 1 if something is wrong."""
    words = list(arguments)
    if any(word in (*HELP_OPTIONS, "help") for word in words):
        print(USAGE)
        return 0
    config = _take_config(words)
    flags = {word.lstrip("-") for word in words if word.startswith("-")}
    words = [word for word in words if not word.startswith("-")]
    actions = {"check": _check, "repair": _repair}
    if len(words) != 2 or words[0] not in actions or flags - {"json"}:
        print(USAGE, file=sys.stderr)
        return EXIT_USAGE
    verb, directory = words
    try:
        environ = {**os.environ, f"{ENVIRONMENT_PREFIX}JETSTREAM__ENABLED": "true"}
        settings = load(config, environ, ()).server.jetstream
        path = directory.rstrip("/") or "/"
        return _locked(path, actions[verb], settings, as_json="json" in flags)
    except (OSError, StoreError, ConfigError) as error:
        print(f"penstock store: {error}", file=sys.stderr)
        return EXIT_FAILURE


def _take_config(words: list[str]) -> str | None:
    """Take the option with the configuration file out of the words, and return the file."""
    for option in ("-c", "--config"):
        if option in words[:-1]:
            at = words.index(option)
            _, path = words.pop(at), words.pop(at)
            return path
    return None


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
        print(render(header, map(_row, reports)))
        print("\n".join(["", *problems]) if problems else "\nEverything checks out.")
    return EXIT_FAILURE if problems else 0


def _check_stream(disk: Disk, directory: str) -> Report:
    return Report(directory, problems=check_stream(disk, directory))


def _row(report: Report) -> tuple[str, ...]:
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
