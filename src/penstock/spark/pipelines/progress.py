"""How far a query is, as the files of its checkpoint say."""

from __future__ import annotations

import json
from typing import Any

from penstock.spark.pipelines.folder import Folder


def status(checkpoint: Folder) -> dict[str, Any]:
    """Return the newest batch, the newest that is finished, and up to where the former reads."""
    started, finished = newest(checkpoint, "offsets"), newest(checkpoint, "commits")
    offset = None if started is None else read_entry(checkpoint, "offsets", started)
    return {"batch": started, "finished": finished, "offset": offset}


def finished_offset(checkpoint: Folder) -> dict[str, Any] | None:
    """Return up to where everything is done; None if nothing is."""
    finished = newest(checkpoint, "commits")
    return None if finished is None else read_entry(checkpoint, "offsets", finished)


def read_entry(checkpoint: Folder, log: str, batch: int) -> dict[str, Any]:
    """Return what a log says of a batch."""
    # Behind what Spark notes for itself comes a line for each source.
    entry: dict[str, Any] = json.loads(checkpoint.read(f"{log}/{batch}").splitlines()[-1])
    return entry


def newest(checkpoint: Folder, log: str) -> int | None:
    """Return the newest batch in a log; None if there is none."""
    names = [path.rpartition("/")[2] for path in checkpoint.find(f"{log}/*")]
    return max((int(name) for name in names if name.isdigit()), default=None)
