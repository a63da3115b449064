"""How far a query is, as the files of its checkpoint say."""

from __future__ import annotations

import json
from typing import Any

from penstock.spark.pipelines.folder import Folder


def status(checkpoint: Folder) -> dict[str, Any]:
    """Return the newest batch, the newest that is finished, and up to where the former reads."""
    started, finished = _newest(checkpoint, "offsets"), _newest(checkpoint, "commits")
    offset = None if started is None else _offset(checkpoint, started)
    return {"batch": started, "finished": finished, "offset": offset}


def finished_offset(checkpoint: Folder) -> dict[str, Any] | None:
    """Return up to where everything is done; None if nothing is."""
    finished = _newest(checkpoint, "commits")
    return None if finished is None else _offset(checkpoint, finished)


def _offset(checkpoint: Folder, batch: int) -> dict[str, Any]:
    # Behind what Spark notes for itself comes a line for each source.
    offset: dict[str, Any] = json.loads(checkpoint.read(f"offsets/{batch}").splitlines()[-1])
    return offset


def _newest(checkpoint: Folder, log: str) -> int | None:
    names = [path.rpartition("/")[2] for path in checkpoint.find(f"{log}/*")]
    return max((int(name) for name in names if name.isdigit()), default=None)
