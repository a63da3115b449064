"""The newest micro-batch of a query, as its checkpoint records it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.spark.files import Files, driver_files

log = logging.getLogger(__name__)

ALL_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
"""The setting below which every query with a name has its checkpoint."""


def began_s(options: Mapping[str, str], address: str) -> float | None:
    """
    Return when the newest batch of a query began, perhaps in an attempt before this one.

    That is the time of its entry in the checkpoint. None if there is none yet, and where the
    checkpoint cannot be seen: without the driver's JVM, as behind Spark Connect, that is
    everywhere but in a directory of this machine.
    """
    if address and Path(address).exists():
        with driver_files(address) as files:
            location = locate(options, files)
            return files.newest_s(f"{location}/offsets") if location else None
    return _local_newest_s(options.get("checkpointLocation", ""))


def locate(options: Mapping[str, str], files: Files) -> str:
    """Return where Spark has the checkpoint of a query; empty if no other run can find it."""
    given, name = options.get("checkpointLocation", ""), options.get("queryName", "")
    below = files.setting(ALL_CHECKPOINTS)
    return given or (f"{below}/{name}" if below and name else "")


def _local_newest_s(checkpoint: str) -> float | None:
    location = urlsplit(checkpoint)
    if not checkpoint or location.scheme not in ("", "file"):
        log.warning(
            "the checkpoint `%s` cannot be seen from here, so that a batch that is written again "
            "after the target's `duplicate_window` may be stored twice",
            checkpoint,
        )
        return None
    entries = Path(unquote(location.path), "offsets").glob("*")
    return max((each.stat().st_mtime for each in entries if each.name.isdigit()), default=None)
