"""
Measure our client beside nats-py, on one nats-server, and print the ratios against their
goals.

The clients take turns, each in its own event loop, and the best of three rounds counts, so
that other load on the machine affects both. Processor time per message is printed too,
because it does not depend on other load. Run it with `python -m benchmarks.client`.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

import penstock
from benchmarks import clientloads as loads
from benchmarks.clientloads import Load
from benchmarks.command import begin, chosen, command_line, program, write_json
from penstock import hot
from penstock.bench.report.ratios import (
    COMPARED,
    OURS,
    THEIRS,
    Figures,
    Goal,
    RatioRow,
    both,
    table,
)
from penstock.bench.scenarios.turns import say, take_turns
from penstock.net.process import ServerProcess

QUICK_DIVISOR = 5
COLUMNS = (*COMPARED, ("CPU µs each", both("cpu_us", 1)))


@dataclass(frozen=True)
class Client:
    """One side of a row: its name, its work, and the number of messages."""

    name: str
    load: Load
    count: int


@dataclass(frozen=True)
class Shape:
    """One row: our work, theirs, and the required ratio."""

    name: str
    ours: Load
    theirs: Load
    goal: float
    count: int
    their_count: int


SHAPES = (
    Shape("publish, 128 B", loads.our_publish, loads.their_publish, 3, 400_000, 200_000),
    Shape(
        "receive by callback, 128 B", loads.our_receive, loads.their_receive, 3, 300_000, 150_000
    ),
    Shape(
        "receive by async for, 128 B", loads.our_iterate, loads.their_iterate, 3, 300_000, 150_000
    ),
    Shape(
        "request and reply, one at a time", loads.our_request, loads.their_request, 1, 5_000, 5_000
    ),
    Shape(
        "JetStream: asynchronous beside awaited publish",
        *(loads.our_publish_async, loads.their_publish_awaited, 5, 60_000, 3_000),
    ),
    Shape(
        "JetStream: asynchronous beside asynchronous",
        *(loads.our_publish_async, loads.their_publish_async, 2, 60_000, 20_000),
    ),
    Shape(
        "JetStream: awaited beside awaited publish",
        *(loads.our_publish_awaited, loads.their_publish_awaited, 1, 5_000, 3_000),
    ),
    Shape("pull: fetch 500 and ack", loads.our_fetch, loads.their_fetch, 2, 60_000, 20_000),
    Shape("pull: consume beside fetch", loads.our_consume, loads.their_fetch, 2, 60_000, 20_000),
)


def measure(client: Client, url: str, divisor: int) -> Figures:
    """Return the figures of one round of one client."""
    count = client.count // divisor
    seconds, cpu_s = asyncio.run(client.load(url, count))  # type: ignore[arg-type]
    return {"rate": count / seconds, "cpu_us": cpu_s / count * 1e6}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a goal is missed."""
    quick = "run a fifth of the messages, one round"
    parser = command_line("benchmarks.client", __doc__, quick=quick, only="shapes")
    options = begin(parser, arguments)
    nats_server = program("nats-server", "nats-server -js -sd store")
    divisor = QUICK_DIVISOR if options.quick else 1
    rows = []
    for shape in chosen(SHAPES, options):
        say(shape.name)
        rows.append(row := RatioRow(shape.name, Goal("rate", shape.goal, "/s")))
        with ServerProcess(nats_server, own_session=True) as server:
            sides = (
                Client(OURS, shape.ours, shape.count),
                Client(THEIRS, shape.theirs, shape.their_count),
            )
            take_turns([row], sides, options.rounds, lambda one: measure(one, server.url, divisor))
    print(f"{_header()}\n\n{table('shape', COLUMNS, rows)}")
    write_json(options, [row.as_json() for row in rows])
    return int(any(row.is_met() is False for row in rows))


def _header() -> str:
    parser = "compiled" if hot.COMPILED else "pure Python"
    return (
        f"penstock {penstock.__version__} ({parser} parser) beside nats-py "
        f"{metadata.version('nats-py')}, Python {sys.version.split()[0]}; messages/s, best round"
    )


if __name__ == "__main__":
    sys.exit(main())
