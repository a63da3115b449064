"""
Measure JetStream beside nats-server: rates, processor time, memory, and start-up time.

Both servers take turns on the same work, each time with a new process and an empty store,
and the best of three rounds counts. Ours acks a message once it is on disk; nats-server
acks earlier, unless the row says `sync always`. Run it with `make bench-jetstream`.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import loads, machine
from benchmarks.jsworks import WORKS, Work
from benchmarks.machine import OTHERS_SHARE_MAX, Usage
from benchmarks.servers import HOST, Program, Server, ServerError, find_command
from benchmarks.table import markdown

OURS, THEIRS = "ours", "theirs"
MEGABYTE = 1 << 20
FULL_MESSAGES, SMALL_MESSAGES = 20_000_000, 1_000_000
FULL_SECONDS_MAX = 1800
STORED_BYTES = 200
QUICK_DIVISOR = 5


@dataclass
class Figure:
    """The figures of one server in one round of a work."""

    rate: float
    cpu_us: float
    """Processor time of the server per message."""
    resident_mb: float
    others_share: float


@dataclass
class Result:
    """Every round of one work."""

    work: Work
    rounds: dict[str, list[Figure]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def best(self, name: str) -> Figure | None:
        """Return the round with the highest rate, or None after a failure."""
        figures = self.rounds.get(name, [])
        return None if name in self.failures or not figures else max(figures, key=_rate)

    def is_noisy(self) -> bool:
        """Tell whether other processes took so much of the machine that a ratio is in doubt."""
        figures = [each for rounds in self.rounds.values() for each in rounds]
        shares = [each.others_share for each in figures]
        return sum(shares) > OTHERS_SHARE_MAX * len(shares)

    def cells(self) -> list[str]:
        """Return the line of the table."""
        ours, theirs = self.best(OURS), self.best(THEIRS)
        if ours is None or theirs is None:
            return [self.work.name, *("FAILED" if each is None else "" for each in (ours, theirs))]
        ratio = ours.rate / theirs.rate
        met = "yes" if ratio >= self.work.bound else "NO"
        return [
            self.work.name,
            f"{ours.rate:,.0f}/s",
            f"{theirs.rate:,.0f}/s",
            f"{ratio:.2f}x",
            f"≥ {self.work.bound:g}x",
            met + ("?" if self.is_noisy() else ""),
            f"{ours.cpu_us:.1f} / {theirs.cpu_us:.1f}",
            f"{ours.resident_mb:.0f} / {theirs.resident_mb:.0f}",
        ]


TITLES = ["work", OURS, THEIRS, "ratio", "goal", "met", "CPU µs each", "memory MB"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a load failed, 2 if a server or compiler is missing."""
    options = _parse(arguments)
    # A container or service manager stops us with SIGTERM: clean up as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        loads.build()
        programs = [
            Program(OURS, (find_command("penstock"), "serve")),
            Program(THEIRS, (find_command("nats-server"),)),
        ]
    except (loads.LoadError, ServerError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{time.strftime('%Y-%m-%d %H:%M %Z')}, {machine.describe()}\n")
    results: list[Result] = []
    try:
        for work in WORKS:
            if options.only.lower() in work.name.lower():
                results.append(Result(work))
                _measure(programs, results[-1], options)
    finally:
        if results:
            print(markdown(TITLES, [result.cells() for result in results]), end="\n\n", flush=True)
    if options.only in "large store":
        print(markdown(STORE_TITLES, _large_store(programs, options)))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2))
    return 1 if any(result.failures for result in results) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jetstream", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="run a fifth of the messages, one round"
    )
    parser.add_argument(
        "--only",
        metavar="SUBSTRING",
        default="",
        help="run only works with this text in their name",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each work")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument(
        "--full", action="store_true", help="fill the large store with 20 M messages instead of 1 M"
    )
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 3)
    return options


def _measure(programs: list[Program], result: Result, options: argparse.Namespace) -> None:
    work = result.work
    _say(work.name)
    for _ in range(options.rounds):
        for program in programs:
            try:
                figure = _run(program, work, quick=options.quick)
            except (loads.LoadError, ServerError) as error:
                result.failures[program.name] = str(error)
                _say(f"    {program.name}: {error}")
                continue
            result.rounds.setdefault(program.name, []).append(figure)
            _say(
                f"    {program.name}: {figure.rate:,.0f}/s, {figure.cpu_us:.1f} µs CPU each, "
                f"{figure.resident_mb:.0f} MB (others {figure.others_share:.0%})"
            )


def _run(program: Program, work: Work, *, quick: bool) -> Figure:
    """Start a server on an empty store and run one work on it."""
    is_ours = program.name == OURS
    divisor = QUICK_DIVISOR if quick else 1
    with tempfile.TemporaryDirectory(prefix="bench-store-") as store:
        with _server(program, store, work.our_sync if is_ours else work.their_sync) as server:
            for load in work.before:
                loads.run("jsload", [HOST, str(server.port), *load.arguments(divisor)])
            if not is_ours:
                divisor *= work.their_divisor
            start, cpu_s = Usage.now(server.cpu_s()), server.cpu_s()
            figures = loads.run("jsload", [HOST, str(server.port), *work.load.arguments(divisor)])
            cpu_s = server.cpu_s() - cpu_s
            others_share = Usage.now(server.cpu_s()).others_share_since(start)
            messages = work.load.messages // divisor
            rate, resident_mb = figures["msgs/s"], server.resident_mb()
            return Figure(rate, cpu_s / messages * 1e6, resident_mb, others_share)


def _server(program: Program, store: str, sync: str = "", **settings: float) -> Server:
    config = Path(store, "server.conf")
    line = f"sync_interval: {sync}" if sync else ""
    config.write_text(f'jetstream {{ store_dir: "{store}", {line} }}\n')
    return Server(program, "-c", str(config), **settings)


STORE_TITLES = ["large store", *("messages", "MB on disk", "stored/s", "memory MB, full")]
STORE_TITLES += ["start s", "memory MB, started"]


def _large_store(programs: list[Program], options: argparse.Namespace) -> list[list[str]]:
    """Fill a store, stop, and start again; return the time and the memory that takes."""
    messages = FULL_MESSAGES if options.full else SMALL_MESSAGES
    if options.quick:
        messages //= QUICK_DIVISOR
    return [_fill_and_start(program, messages) for program in programs]


def _fill_and_start(program: Program, messages: int) -> list[str]:
    _say(f"large store: {program.name}")
    arguments = ["pub", str(messages), str(STORED_BYTES), "1000", "file", "1000"]
    with tempfile.TemporaryDirectory(prefix="bench-store-") as store:
        with _server(program, store) as server:
            load = [HOST, str(server.port), *arguments]
            rate = loads.run("jsload", load, seconds_max=FULL_SECONDS_MAX)["msgs/s"]
            full_mb = server.resident_mb()
        disk_mb = sum(each.stat().st_size for each in Path(store).rglob("*") if each.is_file())
        start_s = time.monotonic()
        with _server(program, store, start_seconds_max=FULL_SECONDS_MAX) as server:
            start_s = time.monotonic() - start_s
            started_mb = server.resident_mb()
    return [
        program.name,
        *(f"{messages:,}", f"{disk_mb / MEGABYTE:.0f}", f"{rate:,.0f}", f"{full_mb:.0f}"),
        *(f"{start_s:.2f}", f"{started_mb:.0f}"),
    ]


def _rate(figure: Figure) -> float:
    return figure.rate


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
