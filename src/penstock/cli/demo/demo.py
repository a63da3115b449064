"""`penstock demo`: the whole of Penstock on this machine, in a minute or two."""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from penstock.cli.arguments import Verb
from penstock.cli.commands import EXIT_FAILURE, EXIT_INTERRUPTED

ORDERS = 50_000
REPORT = "penstock-demo.html"

SUMMARY = f"""\
Show everything on this machine: a broker, an order service with some failures on purpose, Spark \
that archives, audits and measures its events, and a report in `{REPORT}`. Ctrl-C leaves nothing \
behind."""


def tell_story(arguments: Namespace) -> int:
    """Run the demo until it ends or is stopped."""
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


DEMO = Verb(name="demo", summary=SUMMARY, run=tell_story, connects=False)
