"""`penstock store`: check the files of a stopped server, and repair them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TypeAlias

from penstock.cli.main import EXIT_FAILURE, EXIT_USAGE, HELP_OPTIONS
from penstock.errors import StoreError
from penstock.jetstream.files.storecheck import Report, check, is_store, repair
from penstock.jetstream.files.streamcheck import check_stream
from penstock.jetstream.store.file.disk import Lock, RealDisk
from penstock.protocol.tables import render

USAGE = """\
Usage: penstock store check DIR [--json]    read every byte and say what does not check out
       penstock store repair DIR [--json]   save what can be saved, and say what could not

DIR is a store directory, or a stream's in it. The server must be stopped. A repair throws
nothing away: what it takes out is kept in files ending in `.lost`."""

Action: TypeAlias = Callable[[list[str], bool], int]


def run(arguments: Sequence[str]) -> int:
    """Run `penstock store` and return the exit code: 1 if something is wrong."""
    words = [word for word in arguments if not word.startswith("-")]
    flags = {word.lstrip("-") for word in arguments if word.startswith("-")}
    if any(word in (*HELP_OPTIONS, "help") for word in arguments):
        print(USAGE)
        return 0
    actions = {"check": _check, "repair": _repair}
    if len(words) != 2 or words[0] not in actions or flags - {"json"}:
        print(USAGE, file=sys.stderr)
        return EXIT_USAGE
    verb, directory = words
    try:
        return _locked(directory.rstrip("/") or "/", actions[verb], as_json="json" in flags)
    except (OSError, StoreError) as error:
        print(f"penstock store: {error}", file=sys.stderr)
        return EXIT_FAILURE


def _locked(directory: str, action: Action, *, as_json: bool) -> int:
    """Run an action while no server can use the files."""
    stores = find_stores(directory)
    if not stores:
        raise StoreError(f"there is no store in `{directory}`")
    lock = _lock(directory)
    try:
        return action(stores, as_json)
    finally:
        if lock is not None:
            lock.release()


def find_stores(directory: str) -> list[str]:
    """Return the directories at or below this one that hold messages or consumers."""
    return sorted(path for path, _, names in os.walk(directory) if is_store(names))


def _lock(directory: str) -> Lock | None:
    """Take the lock of the server that owns these files; None if there is no lock."""
    path = os.path.abspath(directory)
    candidates = [f"{path}/jetstream", path]
    while path != "/":
        path = os.path.dirname(path)
        candidates.append(path)
    for candidate in candidates:
        if os.path.exists(f"{candidate}/LOCK"):
            return RealDisk().lock(candidate)
    return None


def _check(stores: list[str], as_json: bool) -> int:
    reports = [check(RealDisk(), store) for store in stores]
    reports += [report for report in map(_check_stream, _streams(stores)) if report.problems]
    problems = [problem for report in reports for problem in report.problems]
    if as_json:
        print(json.dumps([asdict(report) for report in reports], indent=2))
    else:
        header = ("DIRECTORY", "SEGMENTS", "MESSAGES", "FIRST", "LAST", "BYTES", "CONSUMERS")
        print(render(header, map(_row, reports)))
        print("\n".join(["", *problems]) if problems else "\nEverything checks out.")
    return EXIT_FAILURE if problems else 0


def _streams(stores: list[str]) -> list[str]:
    """Return the stream directories of some stores."""
    parents = {os.path.dirname(os.path.abspath(store)) for store in stores}
    return sorted(path for path in parents if os.path.basename(os.path.dirname(path)) == "streams")


def _check_stream(directory: str) -> Report:
    return Report(directory, problems=check_stream(RealDisk(), directory))


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


def _repair(stores: list[str], as_json: bool) -> int:
    done = {store: repair(RealDisk(), store) for store in stores}
    if as_json:
        print(json.dumps(done, indent=2))
    else:
        lines = [line for lines in done.values() for line in lines]
        print("\n".join(lines) or "Nothing had to be repaired.")
    return 0
