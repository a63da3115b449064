"""
Measure everything and put the figures into `docs/benchmarks.md`, with one command.

The page has a place for each table, between `<!-- figures: NAME -->` and `<!-- end -->`;
the text around the places is written by hand and stays unchanged.
"""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.bench.report import machine
from penstock.net.process import find_command

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
SERVERS = "penstock,nats,nats-sync"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill in the requested tables, or both."""
    options = _parse(arguments)
    chosen = [name for name in TABLES if getattr(options, name)] or list(TABLES)
    for name in chosen:
        text = PAGE.read_text(encoding="utf-8")
        filled = fill_in(text, name, TABLES[name](options))
        PAGE.write_text(filled, encoding="utf-8")
        print(f"{PAGE.name}: {name} is filled in", file=sys.stderr)
    return 0


def fill_in(text: str, name: str, figures: str) -> str:
    """Return the page with new figures in one of its places."""
    place = re.compile(rf"(<!-- figures: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    filled, count = place.subn(lambda match: f"{match[1]}{figures.strip()}\n{match[2]}", text)
    if count != 1:
        raise SystemExit(f"the page has {count} places for `{name}`")
    return filled


def _core(options: argparse.Namespace) -> str:
    command = [sys.executable, "-m", "benchmarks.core", "--pure", *_quick(options)]
    return f"```text\n{_output(command)}```"


def _compare(options: argparse.Namespace) -> str:
    command = [find_command("penstock"), "bench", "compare", "--server", SERVERS]
    page = ["--html", str(options.html)] if options.html else ["--html", "/dev/null"]
    header = f"{time.strftime('%Y-%m-%d')}, {machine.describe()}\n"
    return f"{header}\n{_output([*command, *page, *_quick(options)])}"


TABLES: dict[str, Callable[[argparse.Namespace], str]] = {"core": _core, "compare": _compare}


def _output(command: Sequence[str]) -> str:
    """Return the standard output of a command; its standard error goes to the terminal."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{command[1]} ended with code {done.returncode} and no figures")
    return done.stdout


def _quick(options: argparse.Namespace) -> list[str]:
    return ["--quick"] if options.quick else []


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("--core", action="store_true", help="only the table driven from C")
    parser.add_argument("--compare", action="store_true", help="only the table driven from Python")
    parser.add_argument(
        "--quick", action="store_true", help="run fewer messages, for a first impression"
    )
    parser.add_argument("--html", type=Path, help="file for the page of the comparison")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
