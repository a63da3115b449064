"""
The executor of a task, as long as it lives.

Spark starts the Python of a task from a daemon, and that from the JVM of the executor. When
the JVM is killed, its tasks go to another, but the daemon notices only when it is its turn,
and its workers after it: on a busy machine seconds later, in which rows that are here already
would be sent beside those of the new task.
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.errors import ClientError


class Executor:
    """The processes above this one, as they are now."""

    def __init__(self) -> None:
        self._above = _above()

    def check(self) -> None:
        """Raise if one of them is gone."""
        if _above() != self._above:
            raise ClientError("the executor of this task is gone, and another has its rows now")


def _above() -> tuple[int, str]:
    """Return the parent, and where that is a daemon of Spark's, whose child it is."""
    parent = os.getppid()
    try:
        # A daemon is forked into workers, so both run one program.
        is_daemon = os.readlink(f"/proc/{parent}/exe") == os.readlink("/proc/self/exe")
        status = Path(f"/proc/{parent}/stat").read_text() if is_daemon else ""
    except OSError:
        status = ""  # It ended just now, or this is no Linux.
    # The name of the program, in parentheses, may hold anything.
    return parent, status.rpartition(")")[2].split()[1] if status else ""
