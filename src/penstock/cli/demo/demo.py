"""`penstock demo`: the whole of Penstock on this machine, in a minute or two."""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from penstock.cli.main import EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USAGE, HELP_OPTIONS

ORDERS = 50_000
REPORT = "penstock-demo.html"

USAGE = f"""\
Usage: penstock demo

Starts a broker, runs an order service on the event bus with some failures on purpose,
archives, audits and measures its events with Spark, checks every figure, and writes a
report to `{REPORT}`. Takes no options; Ctrl-C stops it and leaves nothing behind."""


def run(arguments: Sequence[str]) -> int:
    """Run the demo; return 0 if every check holds."""
    if set(arguments) & {*HELP_OPTIONS, "help"}:
        print(USAGE)
        return 0
    if arguments:
        print(USAGE, file=sys.stderr)
        return EXIT_USAGE
    # SIGTERM cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        return show(ORDERS, Path.cwd() / REPORT)
    except KeyboardInterrupt:
        print("\nstopped; everything is cleaned up", file=sys.stderr)
        return EXIT_INTERRUPTED


def show(orders: int, report: Path) -> int:
    """Run the story, write the report, and return the exit code of the checks."""
    from penstock.cli.demo import report as page
    from penstock.cli.demo.screen import Screen
    from penstock.cli.demo.story import tell

    # The failures are intended, and the screen counts them.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    screen = Screen(sys.stdout)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as home:
        story = tell(screen, Path(home), orders=orders)
    report.write_text(page.render(story), encoding="utf-8")
    screen.print("\n" + page.closing_screen(story))
    screen.print(f"\n  report: {report}")
    return 0 if all(story.checks().values()) else EXIT_FAILURE
