"""
Measure how long it takes to create many streams and consumers, beside nats-server.

Both servers take turns, each time with a new process and an empty store. One raw client keeps
many requests in flight. Run it with `make bench-creation` on a quiet machine.
"""

import sys
import time
from collections.abc import Sequence

from benchmarks.command import add_servers, begin, both_servers, command_line, write_json
from benchmarks.requests import Client, create_consumer, create_stream
from penstock.bench.report import machine
from penstock.bench.report.machine import Meter
from penstock.bench.report.ratios import COMPARED, Figures, Goal, RatioRow, both, failures, table
from penstock.bench.scenarios.turns import take_turns
from penstock.net.process import Program, ServerProcess

STREAMS, CONSUMERS = 2_000, 5_000
CONSUMED = 100
"""The number of streams that have the consumers: nats-server allows each of them 1,000."""
QUICK_DIVISOR = 5
GOAL = Goal("created/s", 1.0, "/s")
COLUMNS = (*COMPARED, ("CPU µs each", both("cpu_us", 0)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a creation failed."""
    parser = command_line("benchmarks.creation", __doc__, quick="create a fifth, one round")
    add_servers(parser)
    options = begin(parser, arguments)
    programs = both_servers(options)
    divisor = QUICK_DIVISOR if options.quick else 1
    streams, consumers = STREAMS // divisor, CONSUMERS // divisor
    print(f"{time.strftime('%Y-%m-%d %H:%M %Z')}, {machine.describe()}\n")
    works = {
        f"{streams:,} streams": lambda each: _streams(each, streams),
        f"{consumers:,} consumers": lambda each: _consumers(each, consumers),
    }
    rows = []
    for name, work in works.items():
        rows.append(RatioRow(name, GOAL))
        take_turns(rows[-1:], programs, options.rounds, work)
    print(table("work", COLUMNS, rows))
    write_json(options, [row.as_json() for row in rows])
    return int(bool(failures(rows)))


def _streams(program: Program, count: int) -> Figures:
    with _server(program) as server, Client(server.port) as client:
        return _measure(server, client, [create_stream(number) for number in range(count)])


def _consumers(program: Program, count: int) -> Figures:
    with _server(program) as server, Client(server.port) as client:
        client.ask([create_stream(number) for number in range(CONSUMED)])
        return _measure(server, client, [create_consumer(n % CONSUMED, n) for n in range(count)])


def _server(program: Program) -> ServerProcess:
    return ServerProcess(program, "jetstream { store_dir: store }\n", own_session=True)


def _measure(server: ServerProcess, client: Client, requests: Sequence[bytes]) -> Figures:
    with Meter(lambda: server.cpu_s) as meter:
        client.ask(requests)
    return {
        "created/s": len(requests) / meter.wall_s,
        "cpu_us": meter.cpu_s / len(requests) * 1e6,
        "others": meter.others_share,
    }


if __name__ == "__main__":
    sys.exit(main())
