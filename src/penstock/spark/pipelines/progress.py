"""How far a query is, as the files of its checkpoint say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from penstock.spark.pipelines.folder import Folder, damaged, read_record

VERSION = "v"
"""The start of each entry in Spark's logs."""


def mapping(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry as it is, if it is a mapping."""
    return {**entry}


def status(checkpoint: Folder, read: Callable[[Any], dict[str, Any]] = mapping) -> dict[str, Any]:
    """Return the newest batch, the newest that is finished, and up to where the former reads."""
    started, finished = newest(checkpoint, "offsets"), newest(checkpoint, "commits")
    offset = None if started is None else read_entry(checkpoint, "offsets", started, read)
    return {"batch": started, "finished": finished, "offset": offset}


def finished_offset(checkpoint: Folder) -> dict[str, Any] | None:
    """Return up to where everything is done; None if nothing is."""
    finished = newest(checkpoint, "commits")
    return None if finished is None else read_entry(checkpoint, "offsets", finished)


def check_readable(checkpoint: Folder) -> None:
    """Raise if a query could not go on from here: Spark tells less well which file is damaged."""
    if checkpoint.find("metadata"):
        read_record(checkpoint, "metadata", itemgetter("id"))
    for log in ("offsets", "commits"):
        last = newest(checkpoint, log)
        if last is None:
            continue
        read_entry(checkpoint, log, last)
        if not checkpoint.read(f"{log}/{last}").startswith(VERSION):
            raise damaged(checkpoint.at(f"{log}/{last}"))


def read_entry(
    checkpoint: Folder,
    log: str,
    batch: int,
    read: Callable[[Any], dict[str, Any]] = mapping,
) -> dict[str, Any]:
    """Return what a log says of a batch."""
    # Behind what Spark notes for itself comes a line for each source.
    return read_record(checkpoint, f"{log}/{batch}", read)


def newest(checkpoint: Folder, log: str) -> int | None:
    """Return the newest batch in a log; None if there is none."""
    names = [path.rpartition("/")[2] for path in checkpoint.find(f"{log}/*")]
    return max((int(name) for name in names if name.isdigit()), default=None)
