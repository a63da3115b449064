"""
Measure Penstock against nats-server, shape by shape, and print the ratios against their
goals.

Both servers run with their default settings, in a new process for every shape, and take
turns, so that other load on the machine affects both. Run it with `make bench-core`.
"""

import argparse
import json
import resource
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import loads, report
from benchmarks.machine import Usage
from benchmarks.report import OURS, PURE, THEIRS, Row
from benchmarks.servers import HOST, Program, Server, ServerError, describe, find_command
from benchmarks.shapes import SHAPES, Shape

IDLE_SECONDS = 0.5
SETTLE_SECONDS = 0.2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a load failed, 2 if a server or compiler is missing."""
    options = _parse(arguments)
    # A container or service manager stops us with SIGTERM: clean up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _allow_many_files()
    try:
        loads.build()
        programs = _programs(options)
        varz = {program.name: describe(program) for program in programs}
    except (loads.LoadError, ServerError) as error:
        print(error, file=sys.stderr)
        return 2
    header = report.header({program.name: program.command for program in programs}, varz)
    rows: list[Row] = []
    interrupted = _measure_all(programs, rows, options)
    _print_report(header, rows, options)
    if interrupted:
        return 130
    return 1 if any(row.failures for row in rows) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.core", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run fewer messages, one round")
    parser.add_argument(
        "--only",
        metavar="SUBSTRING",
        default="",
        help="run only shapes with this text in their name",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help="rounds of each shape (default: 3, or 1 with --quick)",
    )
    parser.add_argument("--pure", action="store_true", help="measure the pure-Python twin too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--ours", default="penstock serve", help="the server to measure")
    parser.add_argument("--theirs", default="nats-server", help="the server to compare it with")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 3)
    return options


def _programs(options: argparse.Namespace) -> list[Program]:
    ours, theirs = _command(options.ours), _command(options.theirs)
    programs = [Program(OURS, ours), Program(THEIRS, theirs)]
    if options.pure:
        programs.append(Program(PURE, ours, {"PENSTOCK_PURE": "1"}))
    return programs


def _command(words: str) -> tuple[str, ...]:
    name, *arguments = shlex.split(words)
    return find_command(name), *arguments


def _allow_many_files() -> None:
    """Raise the soft limit for our child processes: a thousand subscribers need a file each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _measure_all(programs: list[Program], rows: list[Row], options: argparse.Namespace) -> bool:
    """Fill `rows` shape by shape; return whether it was interrupted."""
    shapes = [shape for shape in SHAPES if options.only.lower() in shape.name.lower()]
    try:
        for number, shape in enumerate(shapes, 1):
            _say(f"[{number}/{len(shapes)}] {shape.name}")
            rows += (shape_rows := [Row(shape, goal) for goal in shape.goals])
            _measure_shape(programs, shape_rows, options)
    except KeyboardInterrupt:
        _say("interrupted")
        return True
    return False


def _measure_shape(programs: list[Program], rows: list[Row], options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        servers = []
        for program in programs:
            try:
                servers.append(stack.enter_context(Server(program)))
            except ServerError as error:
                _note_failure(program.name, error, rows)
        for _ in range(options.rounds * rows[0].shape.turns):
            for server in servers:
                # A server that lost messages once has failed: more rounds cannot change
                # that.
                if server.program.name not in rows[0].failures:
                    _measure(server, rows, quick=options.quick)
                    time.sleep(SETTLE_SECONDS)


def _measure(server: Server, rows: list[Row], *, quick: bool) -> None:
    """Run one load on one server, and note its figures or its failure in every row."""
    name = server.program.name
    start = Usage.now(server.cpu_s())
    try:
        figures = _figures(server, rows[0].shape, quick=quick)
    except loads.LoadError as error:
        _note_failure(name, error, rows)
        return
    others_share = Usage.now(server.cpu_s()).others_share_since(start)
    for row in rows:
        row.rounds.setdefault(name, []).append(figures[row.goal.figure])
        row.others.append(others_share)
    values = ", ".join(f"{figures[row.goal.figure]:,.0f} {row.goal.unit}" for row in rows)
    _say(f"    {name}: {values} (others {others_share:.0%})")


def _note_failure(name: str, error: Exception, rows: list[Row]) -> None:
    _say(f"    {name}: {error}")
    for row in rows:
        row.failures[name] = str(error)


def _figures(server: Server, shape: Shape, *, quick: bool) -> loads.Figures:
    if not shape.program:
        time.sleep(IDLE_SECONDS)
        return {"resident_mb": server.resident_mb()}
    resident_mb: list[float] = []
    figures = loads.run(
        shape.program,
        [HOST, str(server.port), *shape.arguments(quick=quick)],
        on_figures=lambda: resident_mb.append(server.resident_mb()),
    )
    return {**figures, "resident_mb": resident_mb[0]}


def _print_report(header: dict[str, str], rows: list[Row], options: argparse.Namespace) -> None:
    for name, value in header.items():
        print(f"{name}: {value}")
    print(f"\n{report.table(rows, with_pure=options.pure)}\n\n{report.summary(rows)}")
    if options.json:
        result = {"header": header, "rows": [row.as_json() for row in rows]}
        options.json.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
