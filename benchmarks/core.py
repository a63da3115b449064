"""
Measure Penstock against nats-server, shape by shape, and print the ratios against their
goals.

Both servers run with their default settings, in a new process for every shape, and take
turns, so that other load on the machine affects both. Run it with `make bench-core`.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import loads
from benchmarks.command import add_servers, begin, both_servers, chosen, command_line, write_json
from benchmarks.shapes import SHAPES, Shape
from penstock.bench.report import machine
from penstock.bench.report.machine import Meter
from penstock.bench.report.ratios import (
    COMPARED,
    OTHERS,
    Figures,
    RatioRow,
    ratio_of,
    summary,
    table,
    value_of,
)
from penstock.bench.scenarios.turns import note_failure, say, take_turns
from penstock.errors import PenstockError
from penstock.net.process import HOST, Program, ServerProcess

PURE = "pure"
PURE_COLUMNS = ((PURE, value_of(PURE)), ("pure ratio", ratio_of(PURE)))
IDLE_SECONDS = 0.5
SETTLE_SECONDS = 0.2
MIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a load failed, 2 if a server or compiler is missing."""
    parser = command_line(
        "benchmarks.core", __doc__, quick="run fewer messages, one round", only="shapes"
    )
    parser.add_argument("--pure", action="store_true", help="measure the pure-Python twin too")
    add_servers(parser)
    options = begin(parser, arguments)
    try:
        loads.build()
        programs = [*both_servers(options)]
        if options.pure:
            programs.append(Program(PURE, programs[0].command, {"PENSTOCK_PURE": "1"}))
        header = _header(programs)
    except PenstockError as error:
        print(error, file=sys.stderr)
        return 2
    rows: list[RatioRow] = []
    interrupted = _measure_all(programs, rows, options)
    _print_report(header, rows, options)
    return 130 if interrupted else int(any(row.failures for row in rows))


def _header(programs: Sequence[Program]) -> dict[str, str]:
    """Return the machine and the versions of the servers."""
    found = {"date": time.strftime("%Y-%m-%d %H:%M %Z"), "machine": machine.describe()}
    for program in programs:
        path, *rest = program.command
        with ServerProcess(program, own_session=True) as server:
            found[program.name] = f"{server.version}, `{shlex.join([Path(path).name, *rest])}`"
    return found


def _measure_all(
    programs: Sequence[Program], rows: list[RatioRow], options: argparse.Namespace
) -> bool:
    """Fill `rows` shape by shape; return whether it was interrupted."""
    shapes = chosen(SHAPES, options)
    try:
        for number, shape in enumerate(shapes, 1):
            say(f"[{number}/{len(shapes)}] {shape.name}")
            rows += (shape_rows := [RatioRow(shape.name, goal) for goal in shape.goals])
            _measure_shape(shape, programs, shape_rows, options)
    except KeyboardInterrupt:
        say("interrupted")
        return True
    return False


def _measure_shape(
    shape: Shape, programs: Sequence[Program], rows: list[RatioRow], options: argparse.Namespace
) -> None:
    with ExitStack() as stack:
        servers = []
        for program in programs:
            try:
                servers.append(stack.enter_context(ServerProcess(program, own_session=True)))
            except PenstockError as error:
                note_failure(rows, program.name, error)
        take_turns(
            rows,
            servers,
            options.rounds * shape.turns,
            lambda server: _measure(server, shape, quick=options.quick),
        )


def _measure(server: ServerProcess, shape: Shape, *, quick: bool) -> Figures:
    """Run one load on one server, and return its figures."""
    time.sleep(SETTLE_SECONDS)
    with Meter(lambda: server.cpu_s) as meter:
        figures = _figures(server, shape, quick=quick)
    return {**figures, "others": meter.others_share}


def _figures(server: ServerProcess, shape: Shape, *, quick: bool) -> loads.Figures:
    if not shape.program:
        time.sleep(IDLE_SECONDS)
        return {"resident_mb": server.resident_bytes / MIB}
    resident_mb: list[float] = []
    figures = loads.run(
        shape.program,
        [HOST, str(server.port), *shape.arguments(quick=quick)],
        on_figures=lambda: resident_mb.append(server.resident_bytes / MIB),
    )
    return {**figures, "resident_mb": resident_mb[0]}


def _print_report(
    header: dict[str, str], rows: list[RatioRow], options: argparse.Namespace
) -> None:
    for name, value in header.items():
        print(f"{name}: {value}")
    columns = [*COMPARED, OTHERS, *(PURE_COLUMNS if options.pure else ())]
    print(f"\n{table('shape', columns, rows)}\n\n{summary(rows)}")
    write_json(options, {"header": header, "rows": [row.as_json() for row in rows]})


if __name__ == "__main__":
    sys.exit(main())
