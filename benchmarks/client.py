"""
Measure our client beside nats-py, on one nats-server, and print the ratios against their
goals.

The clients take turns, each in its own event loop, and the best of three rounds counts, so
that other load on the machine affects both. Processor time per message is printed too,
because it does not depend on other load. Run it with `python -m benchmarks.client`.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata

import penstock
from benchmarks import clientloads as loads
from benchmarks.clientloads import Load
from benchmarks.servers import HOST, Program, Server, find_command
from penstock import hot


@dataclass
class Result:
    """The best round of one client."""

    rate: float = 0.0
    cpu_us: float = field(default=float("inf"))

    def add(self, count: int, seconds: float, cpu_s: float) -> None:
        self.rate = max(self.rate, count / seconds)
        self.cpu_us = min(self.cpu_us, cpu_s / count * 1e6)


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


def measure(shape: Shape, url: str, *, rounds: int, share: float) -> tuple[Result, Result]:
    """Return our best round and theirs; they alternate."""
    ours, theirs = Result(), Result()
    for _ in range(rounds):
        for result, load, count in (
            (ours, shape.ours, int(shape.count * share)),
            (theirs, shape.theirs, int(shape.their_count * share)),
        ):
            seconds, cpu_s = asyncio.run(load(url, count))  # type: ignore[arg-type]
            result.add(count, seconds, cpu_s)
    return ours, theirs


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="run a fifth of the messages, one round"
    )
    parser.add_argument("--only", default="", help="run only shapes with this text in their name")
    options = parser.parse_args(arguments)
    program = Program("nats-server", (find_command("nats-server"), "-js", "-sd", "store"))
    _print_header()
    missed = 0
    for shape in SHAPES:
        if options.only not in shape.name:
            continue
        with Server(program) as server:
            url = f"nats://{HOST}:{server.port}"
            rounds, share = (1, 0.2) if options.quick else (options.rounds, 1.0)
            missed += not _print_row(shape, *measure(shape, url, rounds=rounds, share=share))
    return 1 if missed else 0


def _print_header() -> None:
    parser = "compiled" if hot.COMPILED else "pure Python"
    print(
        f"penstock {penstock.__version__} ({parser} parser) beside nats-py "
        f"{metadata.version('nats-py')}, Python {sys.version.split()[0]}; messages/s, best round\n"
    )
    print(f"| {'shape':<46} | {'ours':>9} | {'nats-py':>8} | ratio | goal | CPU µs each |")
    print(f"|{'-' * 48}|{'-' * 10}:|{'-' * 9}:|------:|-----:|------------:|")


def _print_row(shape: Shape, ours: Result, theirs: Result) -> bool:
    ratio = ours.rate / theirs.rate
    cpu = f"{ours.cpu_us:.1f} / {theirs.cpu_us:.1f}"
    mark = "" if ratio >= shape.goal else " missed"
    print(
        f"| {shape.name:<46} | {ours.rate:9,.0f} | {theirs.rate:8,.0f} "
        f"| {ratio:5.1f} | {shape.goal:4.0f} | {cpu:>11} |{mark}",
        flush=True,
    )
    return ratio >= shape.goal


if __name__ == "__main__":
    sys.exit(main())
