"""`penstock rtt`: the time to a server and back."""

from __future__ import annotations

import asyncio

from penstock.cli.arguments import Verb, argument
from penstock.cli.connection import CONNECTION
from penstock.cli.context import Context
from penstock.cli.terminal import table
from penstock.cli.values import read_positive

PINGS = 5


async def measure(context: Context) -> None:
    """Ping the server some times, and print the shortest, the median and the longest."""
    loop, times = asyncio.get_running_loop(), []
    for _ in range(context.arguments.count):
        began_s = loop.time()
        await context.client.flush()
        times.append(loop.time() - began_s)
    times.sort()
    figures = {"min_s": times[0], "median_s": times[len(times) // 2], "max_s": times[-1]}
    row = (context.client.server, *(f"{each * 1000:.3f} ms" for each in figures.values()))
    document = {"server": context.client.server, "pings": len(times), **figures}
    context.show(table(("SERVER", "SHORTEST", "MEDIAN", "LONGEST"), [row]), document)


RTT = Verb(
    name="rtt",
    summary="Measure the time to the server and back.",
    run=measure,
    arguments=(
        argument(
            "--count",
            metavar="NUMBER",
            type=read_positive,
            default=PINGS,
            doc=f"Number of pings (default: {PINGS}).",
        ),
        *CONNECTION,
    ),
)
