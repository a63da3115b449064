"""
What is said of an attempt that failed: a line for the log, and where it happened.

A handler may raise anything, also what is no `Exception`: libraries written in Rust
panic with a `BaseException`, and so does `pytest.fail`. All of that is a failed attempt.
Only what ends the program goes on its way: `ENDINGS`.

Python throws a GeneratorExit into a coroutine that nobody runs any more, and that ends it.
One that a handler raises is an error like any other.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

ENDINGS = (KeyboardInterrupt, SystemExit)
"""What a handler, or anything else, raises to end the program."""

STOPS = (*ENDINGS, GeneratorExit, asyncio.CancelledError)
"""What ends a background task of the bus. Nothing else does."""

FRAMES_MAX = 20
TRACE_CHARACTERS_MAX = 4000


def runs(task: asyncio.Task[Any] | None) -> bool:
    """Tell whether it is this task that runs: then nobody closes its coroutine."""
    return task is not None and asyncio.current_task(task.get_loop()) is task


def describe(error: BaseException) -> str:
    """Return an error in one line."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, which cannot say why"


def trace_of(error: BaseException) -> str:
    """Return where an error came from; of a long way, the end."""
    try:
        text = "".join(traceback.format_exception(error, limit=-FRAMES_MAX)).rstrip()
    except Exception:
        return describe(error)
    return text[-TRACE_CHARACTERS_MAX:]
