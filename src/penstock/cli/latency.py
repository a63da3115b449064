"""`penstock latency`: how long messages are under way, from one connection to another."""

from __future__ import annotations

import asyncio
import os
import time
from argparse import Namespace

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context, open_context
from penstock.cli.terminal import table
from penstock.cli.values import read_positive
from penstock.errors import ConfigError, PermissionDenied
from penstock.protocol.times import SECOND_NS
from penstock.protocol.units import read_size

STAMP_BYTES = 8
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)


async def measure(context: Context) -> None:
    """Send messages to ourselves, over one server or between two, and print percentiles."""
    arguments = context.arguments
    if arguments.size < STAMP_BYTES:
        raise ConfigError(f"`--size` must be at least {STAMP_BYTES}: a message holds its time")
    if not arguments.to:
        times = await _measure(context, context)
    else:
        other = Namespace(**{**vars(arguments), "server": arguments.to})
        async with open_context(other, os.environ, command="latency") as receiver:
            times = await _measure(context, receiver)
    times.sort()
    figures = {f"p{share:g}": _at(times, share) for share in PERCENTILES}
    rows = [(name, f"{each * 1000:.3f} ms") for name, each in figures.items()]
    document = {"messages": len(times), "bytes": arguments.size, "seconds": figures}
    context.show(table(("PERCENTILE", "LATENCY"), rows), document)


async def _measure(sender: Context, receiver: Context) -> list[float]:
    """Send messages at the rate, and return the times they were under way."""
    arguments, subject = sender.arguments, receiver.client.new_inbox()
    filling, times = b"x" * (arguments.size - STAMP_BYTES), []
    async with await receiver.client.subscribe(subject) as subscription:
        await receiver.client.flush()
        for _ in range(arguments.count):
            began_ns = time.perf_counter_ns()
            await sender.client.publish(subject, began_ns.to_bytes(STAMP_BYTES, "big") + filling)
            message = await subscription.next(timeout_s=arguments.timeout / SECOND_NS)
            sent_ns = int.from_bytes(message.payload[:STAMP_BYTES], "big")
            times.append((time.perf_counter_ns() - sent_ns) / SECOND_NS)
            await asyncio.sleep(max(0.0, 1 / arguments.rate - times[-1]))
    for error in sender.errors:
        if isinstance(error, PermissionDenied):
            raise error
    return times


def _at(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(len(times) * share / 100))]


LATENCY = Verb(
    name="latency",
    summary="Measure how long messages are under way, one at a time.",
    run=measure,
    arguments=(
        argument("--to", metavar="URL", doc="Receive them from this server (default: the same)."),
        argument(
            "--count",
            metavar="NUMBER",
            type=read_positive,
            default=1000,
            doc="Number of messages (default: 1000).",
        ),
        argument(
            "--size", metavar="SIZE", type=read_size, default=128, doc="Their size (default: 128)."
        ),
        argument(
            "--rate",
            metavar="NUMBER",
            type=read_positive,
            default=1000,
            doc="Messages per second (default: 1000).",
        ),
        *CONNECTION,
    ),
)
