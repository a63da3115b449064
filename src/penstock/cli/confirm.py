"""Asking before something is lost."""

from __future__ import annotations

import signal
import sys

from penstock.cli.arguments import argument
from penstock.errors import ClientError

FORCE = argument("-f", "--force", action="store_true", doc="Do not ask.")


def confirm(question: str, *, force: bool) -> None:
    """Return if the person agrees; where there is nobody to ask, only `force` agrees."""
    if force:
        return
    if not sys.stdin.isatty():
        raise ClientError(f"this is no terminal to ask on: {question}; hint: --force does not ask")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    # asyncio would keep Ctrl-C to itself until the answer is there.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        answer = sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, handler)
    if answer.strip().lower() not in ("y", "yes"):
        raise ClientError("nothing was done")
