"""
Picks the compiled or the pure-Python twin of the hot functions, once, at import.

`COMPILED` says which one runs; the server logs it at start and shows it in
/varz, because a slow path nobody is told of is a bug nobody finds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock import wire

__all__ = ["COMPILED", "message_pieces", "parse_commands", "parse_messages"]


def _parse_commands(data: bytes | memoryview, payload_max: int, line_max: int) -> wire.Parsed:
    return wire.parse_commands(bytes(data), payload_max, line_max)


def _parse_messages(data: bytes | memoryview, payload_max: int, line_max: int) -> wire.Parsed:
    return wire.parse_messages(bytes(data), payload_max, line_max)


COMPILED = False
parse_commands = _parse_commands
parse_messages = _parse_messages
message_pieces = wire.message_pieces

if not TYPE_CHECKING and not os.environ.get("PENSTOCK_PURE"):
    try:
        from penstock._speedups import message_pieces, parse_commands, parse_messages
    except ImportError:
        pass
    else:
        COMPILED = True
