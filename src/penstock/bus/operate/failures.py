"""
The report of a failed attempt: a line for the log, and where it happened.

A handler may raise anything, even a `BaseException` that is no `Exception`: libraries
written in Rust panic with one, and so does `pytest.fail`. All of these are failed attempts.
Only the exceptions that end the program pass through: `ENDINGS`.

Python throws a GeneratorExit into an abandoned coroutine, and that ends it. One that a
handler raises is an error like any other.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

ENDINGS = (KeyboardInterrupt, SystemExit)
"""The exceptions that end the program, raised by a handler or by anything else."""

STOPS = (*ENDINGS, GeneratorExit, asyncio.CancelledError)
"""The only exceptions that end a background task of the bus."""

FRAMES_MAX = 20
TRACE_CHARACTERS_MAX = 4000


def runs(task: asyncio.Task[Any] | None) -> bool:
    """Return whether this task is the running one: then its coroutine is not being closed."""
    return task is not None and asyncio.current_task(task.get_loop()) is task


def describe(error: BaseException) -> str:
    """Return an error in one line."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, which cannot say why"


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error; of a long one, the end."""
    try:
        text = "".join(traceback.format_exception(error, limit=-FRAMES_MAX)).rstrip()
    except Exception:
        return describe(error)
    return text[-TRACE_CHARACTERS_MAX:]
