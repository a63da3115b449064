"""
Measure JetStream beside nats-server: rates, processor time, memory, and start-up time.

Both servers take turns on the same work, each time with a new process and an empty store,
and the best of three rounds counts. Ours acks a message once it is on disk; nats-server
acks earlier, unless the row says `sync always`. Run it with `make bench-jetstream`.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks import loads
from benchmarks.command import begin, chosen, command_line, program, write_json
from benchmarks.jsworks import WORKS, Work
from penstock.bench.report import machine
from penstock.bench.report.machine import Meter
from penstock.bench.report.ratios import (
    COMPARED,
    OURS,
    THEIRS,
    Figures,
    Goal,
    RatioRow,
    both,
    failures,
    table,
)
from penstock.bench.scenarios.turns import say, take_turns
from penstock.errors import PenstockError
from penstock.net.process import HOST, START_TIMEOUT_S, Program, ServerProcess
from penstock.protocol.tables import markdown

MIB = 1 << 20
FULL_MESSAGES, SMALL_MESSAGES = 20_000_000, 1_000_000
FULL_SECONDS_MAX = 1800
STORED_BYTES = 200
QUICK_DIVISOR = 5
COLUMNS = (*COMPARED, ("CPU µs each", both("cpu_us", 1)), ("memory MB", both("resident_mb", 0)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a load failed, 2 if a server or compiler is missing."""
    parser = command_line(
        "benchmarks.jetstream",
        __doc__,
        quick="run a fifth of the messages, one round",
        only="works",
    )
    parser.add_argument(
        "--full", action="store_true", help="fill the large store with 20 M messages instead of 1 M"
    )
    options = begin(parser, arguments)
    try:
        loads.build()
        programs = program(OURS, "penstock serve"), program(THEIRS, "nats-server")
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{time.strftime('%Y-%m-%d %H:%M %Z')}, {machine.describe()}\n")
    rows: list[RatioRow] = []
    try:
        for work in chosen(WORKS, options):
            say(work.name)
            rows.append(RatioRow(work.name, Goal("msgs/s", work.bound, "/s")))
            _measure(rows[-1], work, programs, options)
    finally:
        if rows:
            print(table("work", COLUMNS, rows), end="\n\n", flush=True)
    if options.only in "large store":
        print(markdown(STORE_TITLES, _large_store(programs, options), left=len(STORE_TITLES)))
    write_json(options, [row.as_json() for row in rows])
    return int(bool(failures(rows)))


def _measure(
    row: RatioRow, work: Work, programs: Sequence[Program], options: argparse.Namespace
) -> None:
    take_turns(
        [row],
        programs,
        options.rounds,
        lambda program: run(program, work, quick=options.quick),
    )


def run(program: Program, work: Work, *, quick: bool) -> Figures:
    """Start a server on an empty store and run one work on it."""
    is_ours = program.name != THEIRS
    divisor = QUICK_DIVISOR if quick else 1
    with _server(program, work.our_sync if is_ours else work.their_sync) as server:
        for load in work.before:
            loads.run("jsload", [HOST, str(server.port), *load.arguments(divisor)])
        if not is_ours:
            divisor *= work.their_divisor
        with Meter(lambda: server.cpu_s) as meter:
            figures = loads.run("jsload", [HOST, str(server.port), *work.load.arguments(divisor)])
        return {
            **figures,
            "cpu_us": meter.cpu_s / (work.load.messages // divisor) * 1e6,
            "resident_mb": server.resident_bytes / MIB,
            "others": meter.others_share,
        }


def _server(
    program: Program, sync: str = "", *, start_timeout_s: float = START_TIMEOUT_S
) -> ServerProcess:
    line = f"sync_interval: {sync}" if sync else ""
    return ServerProcess(
        program,
        f"jetstream {{ store_dir: store, {line} }}\n",
        start_timeout_s=start_timeout_s,
        own_session=True,
    )


STORE_TITLES = ["large store", *("messages", "MB on disk", "stored/s", "memory MB, full")]
STORE_TITLES += ["start s", "memory MB, started"]


def _large_store(programs: Sequence[Program], options: argparse.Namespace) -> list[list[str]]:
    """Fill a store, stop, and start again; return the time and the memory that takes."""
    messages = FULL_MESSAGES if options.full else SMALL_MESSAGES
    if options.quick:
        messages //= QUICK_DIVISOR
    return [_fill_and_start(program, messages) for program in programs]


def _fill_and_start(program: Program, messages: int) -> list[str]:
    say(f"large store: {program.name}")
    arguments = ["pub", str(messages), str(STORED_BYTES), "1000", "file", "1000"]
    with _server(program, start_timeout_s=FULL_SECONDS_MAX) as server:
        load = [HOST, str(server.port), *arguments]
        rate = loads.run("jsload", load, seconds_max=FULL_SECONDS_MAX)["msgs/s"]
        full_mb = server.resident_bytes / MIB
        server.stop()
        files = [each for each in (server.directory / "store").rglob("*") if each.is_file()]
        disk_mb = sum(each.stat().st_size for each in files) / MIB
        start_s = time.monotonic()
        server.start()
        start_s = time.monotonic() - start_s
        started_mb = server.resident_bytes / MIB
    return [
        program.name,
        *(f"{messages:,}", f"{disk_mb:.0f}", f"{rate:,.0f}", f"{full_mb:.0f}"),
        *(f"{start_s:.2f}", f"{started_mb:.0f}"),
    ]


if __name__ == "__main__":
    sys.exit(main())
