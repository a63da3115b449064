"""
The demo, act by act, and the checks at its end.

A broker starts. An order service publishes events through the event bus and handles them;
some fail at first. Spark archives the events, audits their order, measures them by the
second, and writes the figures back to the bus, where a second service reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.bench.scenarios.servers import started
from penstock.cli.demo.lake import Lake
from penstock.cli.demo.screen import Act, Screen
from penstock.cli.demo.shop import REGIONS, Shop, read_windows
from penstock.errors import ConfigError

HANDLED = "handled.parquet"


@dataclass
class Story:
    """The results of the demo."""

    broker: str = ""
    spark: str = ""
    shop: Shop = field(init=False)
    archived: int = 0
    audit: dict[str, int] = field(default_factory=dict)
    windows: list[dict[str, Any]] = field(default_factory=list)
    windows_written: int = 0
    resident_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """The duration of each act."""

    without_spark: str = ""
    """Why Spark was left out, if it was."""

    def checks(self) -> dict[str, bool]:
        """Return every claim of the report, and whether it holds."""
        shop = self.shop
        checks = {
            f"{shop.published:,} published, {shop.handled:,} handled": (
                shop.events == shop.published == shop.handled
            ),
            f"{shop.out_of_order:,} out of order in two processes, one of them killed, "
            f"{shop.repeated:,} repeated": (
                shop.out_of_order == 0
                and 0 < shop.killed_at
                and shop.repeated <= shop.in_flight_max
            ),
        }
        return checks if self.without_spark else checks | self._checks_of_spark()

    def _checks_of_spark(self) -> dict[str, bool]:
        events, audit = self.shop.events, self.audit
        measured = sum(window["messages"] for window in self.windows)
        return {
            f"{self.archived:,} archived, {audit['missing']:,} missing, "
            f"{audit['duplicated']:,} twice": (
                self.archived == events
                and not (audit["missing"] or audit["duplicated"] or audit["foreign"])
            ),
            f"{audit['out of order']:,} out of order, as Spark's audit of all "
            f"{audit['handled']:,} found": (
                audit["out of order"] == 0 and audit["handled"] == events
            ),
            f"{measured:,} events in the {len(self.windows):,} windows that came back by the bus": (
                measured == events and len(self.windows) == self.windows_written
            ),
        }


def tell(screen: Screen, home: Path, *, orders: int) -> Story:
    """Run every act; `home` is the directory for all temporary files."""
    story = Story()
    with ExitStack() as running:
        with screen.act("broker") as act:
            broker = running.enter_context(started("penstock", jetstream=True))
            story.broker = broker.version
            act.say(f"{broker.url}, {broker.version}")
        _serve_orders(screen, story, broker.url, orders)
        try:
            lake = running.enter_context(_start_spark(screen, story, broker.url, home))
        except ConfigError as error:
            story.without_spark = str(error)
        else:
            story.shop.write_ledger(home / HANDLED)
            _go_to_the_lake(screen, story, lake, home)
            _read_back(screen, story, lake, broker.url)
        story.resident_bytes = broker.resident_bytes
    return story


def _serve_orders(screen: Screen, story: Story, url: str, orders: int) -> None:
    with screen.act("service") as act:
        story.shop = Shop(url, orders=orders)
        act.say(f"{orders:,} orders in {len(REGIONS)} regions")
        asyncio.run(story.shop.run(lambda shop: act.say(_progress(shop))))
        _keep(story, act)


def _progress(shop: Shop) -> str:
    killed = ", a process killed" if shop.killed_at else ""
    return (
        f"{shop.published:,} published, {shop.handled:,} handled, {shop.failures:,} retried{killed}"
    )


@contextmanager
def _start_spark(screen: Screen, story: Story, url: str, home: Path) -> Iterator[Lake]:
    with ExitStack() as running:
        with screen.act("spark") as act:
            act.say("starting")
            try:
                lake = running.enter_context(Lake(url, home))
            except ConfigError as error:
                act.say(f"skipped: {error}")
                raise
            story.spark = lake.version
            act.say(f"Spark {lake.version} on this machine")
        yield lake


def _go_to_the_lake(screen: Screen, story: Story, lake: Lake, home: Path) -> None:
    with screen.act("archive") as act:
        act.say("reading the stream")
        story.archived = lake.archive(act.say)
        act.say(f"{story.archived:,} events in Parquet, by topic and day")
        _keep(story, act)
    with screen.act("audit") as act:
        act.say("comparing published, archived and handled, message by message")
        story.audit = lake.audit(home / HANDLED)
        act.say(f"{story.audit['aggregates']:,} orders, every message of each")
        _keep(story, act)


def _read_back(screen: Screen, story: Story, lake: Lake, url: str) -> None:
    with screen.act("metrics") as act:
        act.say("measuring by the second, writing back to the bus")
        story.windows_written = lake.measure()
        story.windows = asyncio.run(read_windows(url, story.windows_written))
        act.say(f"{len(story.windows)} windows written to the bus, and read from it")
        _keep(story, act)


def _keep(story: Story, act: Act) -> None:
    story.seconds[act.title] = act.elapsed_s
