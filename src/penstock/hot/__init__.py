"""
Picks the compiled or the pure-Python version of the hot functions, once, at import.

`COMPILED` tells which one runs. The server logs it at start and shows it in /varz, because
nobody finds a slow path that nothing reports.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

__all__ = [
    "COMPILED",
    "Outlet",
    "Receiver",
    "are_siblings",
    "collect_deliveries",
    "crc32c",
    "decode_messages",
    "decode_s2",
    "encode_deliveries",
    "encode_records",
    "fan_out",
    "fan_out_each",
    "first_deliveries",
    "have_prefix",
    "message_pieces",
    "numbered_answers",
    "parse_commands",
    "parse_messages",
    "plain_acks",
    "plain_entries",
    "publish_totals",
    "stored_answer",
    "write_outbox",
]

COMPILED = False

if not TYPE_CHECKING and not os.environ.get("PENSTOCK_PURE"):
    try:
        from penstock.hot._speedups import (
            Outlet,
            Receiver,
            are_siblings,
            collect_deliveries,
            crc32c,
            decode_messages,
            decode_s2,
            encode_deliveries,
            encode_records,
            fan_out,
            fan_out_each,
            first_deliveries,
            have_prefix,
            message_pieces,
            numbered_answers,
            parse_commands,
            parse_messages,
            plain_acks,
            plain_entries,
            publish_totals,
            stored_answer,
            write_outbox,
        )

        COMPILED = True
    except ImportError:
        pass

# Import only the version that runs: this saves time at every start.
if TYPE_CHECKING or not COMPILED:
    from penstock.hot.answers import are_siblings, numbered_answers, stored_answer
    from penstock.hot.consuming import encode_deliveries, first_deliveries, have_prefix, plain_acks
    from penstock.hot.deliveries import collect_deliveries
    from penstock.hot.fanout import Outlet, Receiver, fan_out, fan_out_each
    from penstock.hot.outbox import write_outbox
    from penstock.hot.records import decode_messages, encode_records, plain_entries
    from penstock.hot.s2 import crc32c, decode_s2
    from penstock.hot.wire import message_pieces, parse_commands, parse_messages, publish_totals
