"""Ask before anything is deleted or changed."""

from __future__ import annotations

import signal
import sys

from penstock.cli.arguments import argument
from penstock.errors import ClientError

FORCE = argument("-f", "--force", action="store_true", doc="Do not ask.")


def confirm(question: str, *, force: bool) -> None:
    """Return if the user agrees. Without a terminal, only `force` agrees."""
    if force:
        return
    if not sys.stdin.isatty():
        raise ClientError(f"cannot ask without a terminal: {question}; hint: --force does not ask")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    # asyncio would hold back Ctrl-C until the answer is there.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        answer = sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, handler)
    if answer.strip().lower() not in ("y", "yes"):
        raise ClientError("nothing was done")
