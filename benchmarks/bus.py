"""
Measure the event bus against its goals, and beside nats-py and FastStream.

One process, envelopes with a payload of 256 bytes, a persistent topic; the embedded engine
syncs each event before its ack. The clock starts with the first call and stops with the
last ack. Run it with `make bench-bus`.
"""

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import busloads, busmembers, busrivals
from benchmarks.command import begin, command_line, program, write_json
from penstock.bench.report import machine
from penstock.bench.report.machine import OTHERS_SHARE_MAX, Meter
from penstock.bench.report.ratios import VERDICTS
from penstock.bench.scenarios.turns import say
from penstock.net.process import ServerProcess
from penstock.protocol.tables import markdown

PROCESSES = (1, 2, 4, 8)
SHARE_MIN = 0.85
IN_FLIGHT = (500, 1000, 2500, 5000, 10_000)
GROWTH_NOISE = 0.95
"""A figure may be this fraction of the previous one and still count as not lower."""


@dataclass
class Row:
    """One line of the table."""

    work: str
    figure: str
    goal: str = ""
    met: bool | None = None
    others: float = 0.0

    def cells(self) -> list[str]:
        """Return the line as text."""
        doubt = "?" if self.met is not None and self.others > OTHERS_SHARE_MAX else ""
        return [self.work, self.figure, self.goal, VERDICTS[self.met] + doubt, f"{self.others:.0%}"]


class Bench:
    """Runs loads one after another and collects the lines."""

    def __init__(self, *, scale: int, rounds: int, url: str) -> None:
        self._scale = scale
        self._rounds = rounds
        self._url = url
        self._rows: list[Row] = []

    def run(self) -> list[Row]:
        """Measure everything."""
        embedded = busloads.settings("")
        self._rates(embedded)
        self._times(embedded)
        self._lanes(embedded)
        self._growth(embedded)
        if self._url:
            self._rivals()
            self._members()
        self._leaks(embedded)
        return self._rows

    def _rates(self, config: Any) -> None:
        self._rate("asynchronous publish, embedded", busloads.publish, config, 200_000, 100_000)
        self._rate("end to end, 1000 aggregates", busloads.end_to_end, config, 100_000, 40_000)

    def _rate(
        self,
        work: str,
        load: Callable[[Any, int], Awaitable[float]],
        config: Any,
        count: int,
        goal: int,
    ) -> None:
        def once() -> float:
            return asyncio.run(_awaited(load(config, count // self._scale)))

        rates, others = self._measured(lambda: [once() for _ in range(self._rounds)])
        best = max(rates)
        self._add(Row(work, f"{best:,.0f} msg/s", f">= {goal:,}", best >= goal, others))

    def _times(self, config: Any) -> None:
        count = 20_000 // self._scale
        median_us, others = self._measured(lambda: asyncio.run(busloads.hand_over(config, count)))
        met = median_us <= 50
        self._add(
            Row("hand over one event", f"p50 {median_us:.1f} us", "p50 <= 50 us", met, others)
        )
        count = 5000 // self._scale
        (p50, p99), others = self._measured(lambda: asyncio.run(busloads.latency(config, count)))
        self._add(
            Row(
                "end-to-end latency at 1000 msg/s",
                f"p50 {p50:.2f} ms, p99 {p99:.2f} ms",
                "p50 <= 3 ms, p99 <= 10 ms",
                p50 <= 3 and p99 <= 10,
                others,
            )
        )

    def _lanes(self, config: Any) -> None:
        def both() -> tuple[float, float]:
            many = busloads.lanes(config, 10_000 // self._scale, lanes=256)
            one = busloads.lanes(config, 500 // self._scale, lanes=1)
            return asyncio.run(many), asyncio.run(one)

        (many, one), others = self._measured(both)
        figure = f"{many / one:.1f}x ({many:,.0f} / {one:,.0f})"
        self._add(
            Row("handler of 2 ms, 256 lanes / 1 lane", figure, ">= 25x", many / one >= 25, others)
        )

    def _growth(self, config: Any) -> None:
        def rate(messages_max: int) -> float:
            load = busloads.end_to_end(
                busloads.in_flight(config, messages_max), 40_000 // self._scale
            )
            return asyncio.run(load)

        def rates() -> list[float]:
            # In turns, so that a slow moment of the machine does not affect a single bound
            # only.
            rounds = [[rate(bound) for bound in IN_FLIGHT] for _ in range(self._rounds)]
            return [max(column) for column in zip(*rounds, strict=True)]

        found, others = self._measured(rates)
        grows = all(b >= a * GROWTH_NOISE for a, b in itertools.pairwise(found))
        figure = " ".join(f"{rate / 1000:.1f}k" for rate in found)
        self._add(Row("500 ... 10,000 in flight", figure, "never falls", grows, others))

    def _rivals(self) -> None:
        """Measure other libraries, and ours on the same server."""
        ours = busloads.settings(self._url)
        count = 20_000 // self._scale
        published = asyncio.run(busloads.publish(ours, count))
        handled = asyncio.run(busloads.end_to_end(ours, count))
        self._add(Row("ours on nats-server", f"{published:,.0f} out, {handled:,.0f} through"))
        out, into = asyncio.run(busrivals.nats_py(self._url, count // 10))
        self._add(
            Row(
                "nats-py's JetStream",
                f"{out:,.0f} out, {into:,.0f} in; ours publishes {published / out:.1f}x",
            )
        )
        try:
            through = asyncio.run(busrivals.faststream(self._url, count // 4))
        except ImportError:
            self._add(Row("FastStream", "not installed"))
            return
        figure = f"{through:,.0f} through; ours {handled / through:.1f}x"
        self._add(Row("FastStream on nats-server", figure))

    def _members(self) -> None:
        """Measure a service of many processes."""
        url = self._url
        rates, others = self._measured(
            lambda: [asyncio.run(busmembers.scaling(url, count)) for count in PROCESSES]
        )
        shares = [rate / rates[0] for rate in rates]
        enough = all(
            share >= SHARE_MIN * count for share, count in zip(shares, PROCESSES, strict=True)
        )
        figure = " ".join(f"{share:.2f}x" for share in shares)
        self._add(Row("handler of 2 ms, 1, 2, 4, 8 processes", figure, ">= 0.85 N", enough, others))
        rounds = max(3, 30 // self._scale)
        (p50, p99), others = self._measured(lambda: asyncio.run(busmembers.hand_overs(url, rounds)))
        figure = f"p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        self._add(Row("a process is replaced", figure, "p99 < 1000 ms", p99 < 1000, others))
        (uneven, twice), others = self._measured(lambda: asyncio.run(busmembers.many(url, 64)))
        figure = f"most has {uneven:.2f}x its share, {twice} twice"
        self._add(Row("64 members, 100,000 keys", figure, "0 twice", twice == 0, others))
        asked, others = self._measured(lambda: asyncio.run(busmembers.idle(url, 8)))
        self._add(
            Row(
                "8 idle members", f"{asked:.1f} requests/s", "<= 20 requests/s", asked <= 20, others
            )
        )

    def _leaks(self, config: Any) -> None:
        left, others = self._measured(lambda: asyncio.run(busloads.leaks(config, 2000)))
        self._add(Row("tasks, threads, files left", str(left), "0", left == 0, others))

    def _measured(self, work: Callable[[], Any]) -> tuple[Any, float]:
        with Meter() as meter:
            result = work()
        return result, meter.others_share

    def _add(self, row: Row) -> None:
        say(f"{row.work}: {row.figure}")
        self._rows.append(row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; a missed goal is a figure, not a failure."""
    quick = "run a tenth of the messages, one round"
    parser = command_line("benchmarks.bus", __doc__, quick=quick)
    parser.add_argument("--alone", action="store_true", help="skip nats-server and other libraries")
    options = begin(parser, arguments)
    scale = 10 if options.quick else 1
    if options.alone:
        rows = Bench(scale=scale, rounds=options.rounds, url="").run()
    else:
        nats_server = program("theirs", "nats-server -js -sd store")
        with ServerProcess(nats_server, own_session=True) as server:
            rows = Bench(scale=scale, rounds=options.rounds, url=server.url).run()
    titles = ["work", "figure", "goal", "met", "others"]
    cells = [row.cells() for row in rows]
    print(f"{machine.describe()}\n\n{markdown(titles, cells, left=len(titles))}")
    write_json(options, [vars(row) for row in rows])
    return 0


async def _awaited(work: Awaitable[float]) -> float:
    return await work


if __name__ == "__main__":
    sys.exit(main())
