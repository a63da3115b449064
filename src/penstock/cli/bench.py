"""`penstock bench`: a drop-in for nats-bench, comparisons, and a history of results."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from penstock.bench.load.processes import STOP_SIGNALS
from penstock.bench.report import history, machine, report
from penstock.bench.report.progress import Progress
from penstock.bench.report.result import Outcome
from penstock.bench.scenarios import compare
from penstock.bench.scenarios.options import (
    COMMON_FLAGS,
    COMPARE_FLAGS,
    RUN_FLAGS,
    TUNING_FLAGS,
    Options,
    parse_compare,
    parse_run,
)
from penstock.bench.scenarios.rounds import by_server, measure, median_round
from penstock.bench.scenarios.scenarios import SCENARIOS
from penstock.cli.commands import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, HELP_OPTIONS
from penstock.config.file.flags import spell
from penstock.errors import ConfigError, PenstockError
from penstock.protocol.tables import markdown


def run(arguments: Sequence[str]) -> int:
    """Run `penstock bench` and return the exit code."""
    for number in STOP_SIGNALS:
        # Signals that `nohup` ignores stay ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    machine.raise_open_files_limit()
    commands: dict[str, Callable[[Sequence[str]], int]] = {
        "compare": _compare,
        "history": _history,
        "scenarios": _scenarios,
    }
    name, *rest = arguments or [""]
    try:
        return commands[name](rest) if name in commands else _run(arguments)
    except ConfigError as error:
        print(f"penstock bench: {error}\nSee penstock bench --help", file=sys.stderr)
        return EXIT_USAGE


def usage() -> str:
    """Return the help of `penstock bench`."""
    lines = [
        "Usage: penstock bench [options] [SUBJECT]",
        "       penstock bench compare [options]   every scenario on several servers, and a page",
        "       penstock bench history [--json]    results so far on this machine",
        "       penstock bench scenarios           the list of scenarios",
    ]
    for title, flags in (
        ("Run", RUN_FLAGS),
        ("Compare", COMPARE_FLAGS),
        ("Tuning", TUNING_FLAGS),
        ("Common", COMMON_FLAGS),
    ):
        lines += ["", f"{title}:", *(f"    {spell(flag):32}{flag.doc}" for flag in flags)]
    return "\n".join(lines)


def _run(arguments: Sequence[str]) -> int:
    options = parse_run(arguments)
    if options.help:
        print(usage())
        return 0
    outcomes: list[Outcome] = []
    if not options.json:
        print(report.starting_line(options.plan), flush=True)
    interrupted = _collect(
        measure(options.plan, options.servers, rounds=options.rounds, watcher=Progress(sys.stderr)),
        outcomes,
    )
    _write_csv(options, outcomes)
    _keep(options, [median_round(rounds) for rounds in by_server(outcomes).values()])
    if options.json:
        _print_json({"outcomes": [outcome.as_json() for outcome in outcomes]})
    else:
        _print_reports(outcomes)
    return _exit_code(outcomes, interrupted=interrupted)


def _compare(arguments: Sequence[str]) -> int:
    from penstock.bench.report import page

    options = parse_compare(arguments)
    if options.help:
        print(usage())
        return 0
    if options.engines:
        return _compare_engines(options)
    shapes = compare.suite(options.plan, quick=options.quick, only=options.only)
    results: list[compare.Result] = []
    watcher = Progress(sys.stderr)
    interrupted = _collect(
        compare.compare(shapes, options.servers, rounds=options.rounds, watcher=watcher), results
    )
    outcomes = [one for result in results for rounds in result.rounds.values() for one in rounds]
    counted = [median_round(rounds) for result in results for rounds in result.rounds.values()]
    _write_csv(options, outcomes)
    _keep(options, counted)
    Path(options.html).write_text(
        page.render(results, options.servers, rounds=options.rounds), encoding="utf-8"
    )
    if options.json:
        _print_json({"results": [result.as_json() for result in results]})
    else:
        print(compare.render(results, options.servers))
    print(f"The page is {options.html}", file=sys.stderr)
    return _exit_code(outcomes, interrupted=interrupted)


def _compare_engines(options: Options) -> int:
    from penstock.bench.report import enginepage
    from penstock.bench.scenarios import engines

    loads = engines.QUICK_LOADS if options.quick else engines.LOADS
    figures: list[engines.LoadFigures] = []
    found = engines.compare(
        options.engines,
        loads=loads,
        rounds=options.rounds,
        say=lambda text: print(text, file=sys.stderr),
    )
    try:
        interrupted = _collect(found, figures)
    except PenstockError as error:
        print(f"penstock bench: {error}", file=sys.stderr)
        return EXIT_FAILURE
    page = enginepage.render(figures, options.engines, rounds=options.rounds)
    Path(options.html).write_text(page, encoding="utf-8")
    if options.json:
        _print_json({"engines": [vars(one) for one in figures]})
    else:
        print(engines.render(figures, options.engines))
    print(f"The page is {options.html}", file=sys.stderr)
    return EXIT_INTERRUPTED if interrupted else 0


def _history(arguments: Sequence[str]) -> int:
    if set(arguments) & set(HELP_OPTIONS):
        print(usage())
        return 0
    for one in arguments:
        if one not in ("--json", "-json"):
            raise ConfigError(f"`{one}` is unknown here; hint: --json")
    entries = history.read(history.path())
    if arguments:
        print(json.dumps(entries, indent=2))
        return 0
    if not entries:
        print(f"No results yet in {history.path()}", file=sys.stderr)
        return 0
    trends = history.trends(entries)
    header = ("scenario", "shape", "server", "results", "trend", "last", "change", "")
    print(markdown(header, [_trend_row(trend) for trend in trends], left=3))
    return EXIT_FAILURE if any(trend.regressed for trend in trends) else 0


def _scenarios(arguments: Sequence[str]) -> int:
    if arguments and not set(arguments) & set(HELP_OPTIONS):
        raise ConfigError(f"`{arguments[0]}` is one argument too many")
    rows = [(scenario.name, scenario.summary) for scenario in SCENARIOS.values()]
    print(markdown(("scenario", "what it measures"), rows, left=2))
    return 0


def _collect(found: Iterable[Any], into: list[Any]) -> bool:
    """Collect all results until Ctrl-C; return whether Ctrl-C came."""
    try:
        for one in found:
            into.append(one)
    except KeyboardInterrupt:
        return True
    return False


def _print_reports(outcomes: Sequence[Outcome]) -> None:
    grouped = by_server(outcomes)
    for server, rounds in grouped.items():
        if len(grouped) > 1 or len(rounds) > 1:
            which = "" if len(rounds) == 1 else f", the median of {len(rounds)} rounds"
            print(f"\n{server}{which}:")
        outcome = median_round(rounds)
        print(f"{report.stats(outcome)}\n\n{report.findings(outcome)}")
    if len(grouped) > 1:
        print(f"\n{compare.render([compare.of_one_plan(outcomes)], list(grouped))}")


def _trend_row(trend: history.Trend) -> tuple[str, ...]:
    values, change = trend.values, trend.change
    spell = report.human_time if trend.by_latency else compare.human_rate
    return (
        trend.scenario,
        trend.shape,
        trend.server,
        str(len(values)),
        trend.sparks,
        spell(values[-1]) if values else "-",
        f"{change:+.0%}" if change is not None else "-",
        "REGRESSION" if trend.regressed else "",
    )


def _write_csv(options: Options, outcomes: Sequence[Outcome]) -> None:
    if options.csv:
        Path(options.csv).write_text(report.as_csv(outcomes), encoding="utf-8")


def _keep(options: Options, outcomes: Sequence[Outcome]) -> None:
    """Add results to the history. If it cannot be written, the results are still shown."""
    if not options.history:
        return
    try:
        history.append(outcomes, history.path())
    except OSError as error:
        print(f"penstock bench: cannot write the history: {error}", file=sys.stderr)


def _print_json(fields: dict[str, Any]) -> None:
    print(json.dumps({"machine": machine.describe(), **fields}, indent=2))


def _exit_code(outcomes: Sequence[Outcome], *, interrupted: bool) -> int:
    if interrupted or any(outcome.interrupted for outcome in outcomes):
        return EXIT_INTERRUPTED
    return 0 if all(outcome.sound for outcome in outcomes) else EXIT_FAILURE


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End with an exception, so that processes are stopped and temporary files removed."""
    # A second signal must not interrupt the cleanup.
    for one in STOP_SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
