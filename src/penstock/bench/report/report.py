"""
The report of a run, in the familiar format of nats-bench.

Below it come loss, order and latency, which nats-bench does not report.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence

from penstock.bench.load.payload import HEAD, TIMED_EVERY, is_checked
from penstock.bench.report.result import PERCENTILES, Outcome, Sample, together
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.scenarios import find

UNITS = ("KB", "MB", "GB", "TB", "PB", "EB")

CSV_COLUMNS = (
    *("#RunID", "ClientID", "MsgCount", "MsgBytes", "MsgsPerSec", "BytesPerSec", "DurationSecs"),
    *("Server", "Scenario"),
)
"""nats-bench's own columns come first, so that programs for those can read ours."""


def starting_line(plan: Plan) -> str:
    """Return the first line of a run."""
    publishers, subscribers = find(plan.scenario).clients(plan)
    return (
        f"Starting benchmark [msgs={plan.messages}, msgsize={plan.size_bytes}, "
        f"pubs={publishers}, subs={subscribers}]"
    )


def stats(outcome: Outcome) -> str:
    """Return the figures of a run in the format of nats-bench."""
    scenario = find(outcome.plan.scenario)
    sides = [
        (label, samples)
        for label, samples in zip(
            scenario.sides, (outcome.publishers, outcome.subscribers), strict=True
        )
        if together(samples)
    ]
    lines = []
    if len(sides) == 2:
        assert outcome.total is not None
        lines.append(f"{scenario.title} stats: {_figures(outcome.total)}")
    indent = " " * len(lines)
    for label, samples in sides:
        lines += _side(f"{indent}{label} stats", samples, indent)
    return "\n".join(lines or ["Nothing was measured."])


def findings(outcome: Outcome) -> str:
    """Return everything else about a run: loss, order, latency, errors."""
    lines = [_delivery(outcome)]
    if outcome.latency_ns.count:
        lines.append(_latency(outcome))
    if outcome.resident_bytes is not None:
        lines.append(f"Server: {outcome.version}, {human_bytes(outcome.resident_bytes)} resident")
    elif outcome.version:
        lines.append(f"Server: {outcome.version}")
    lines += [f"FAILED: {error}" for error in outcome.errors]
    if outcome.interrupted:
        lines.append("Interrupted: the figures cover the run up to that point.")
    return "\n".join(lines)


def as_csv(outcomes: Iterable[Outcome]) -> str:
    """Return a row for every client of every run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for number, outcome in enumerate(outcomes, start=1):
        writer.writerows(_csv_rows(f"run-{number}", outcome))
    return text.getvalue()


def human_bytes(count: float) -> str:
    """Return a number of bytes with a fitting unit."""
    if count < 1024:
        return f"{count:.2f} B"
    exponent = min(int(math.log2(count) / 10), len(UNITS))
    return f"{count / 1024**exponent:.2f} {UNITS[exponent - 1]}"


def human_time(duration_ns: float) -> str:
    """Return a duration with a fitting unit."""
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if duration_ns >= factor:
            return f"{duration_ns / factor:.3g} {unit}" if duration_ns < 1e12 else "> 1000 s"
    return f"{duration_ns:.0f} ns"


def _side(title: str, samples: Sequence[Sample], indent: str) -> Iterator[str]:
    total = together(samples)
    assert total is not None
    yield f"{title}: {_figures(total)}"
    if len(samples) > 1:
        for number, sample in enumerate(samples, start=1):
            yield f"{indent} [{number}] {_figures(sample)} ({sample.messages} msgs)"
        yield f"{indent} {_spread([int(sample.rate) for sample in samples])}"


def _figures(sample: Sample) -> str:
    return f"{int(sample.rate):,} msgs/sec ~ {human_bytes(sample.bytes_rate)}/sec"


def _spread(rates: Sequence[int]) -> str:
    average = sum(rates) / len(rates)
    deviation = math.sqrt(sum((rate - average) ** 2 for rate in rates) / len(rates))
    return (
        f"min {min(rates):,} | avg {int(average):,} | max {max(rates):,} | "
        f"stddev {int(deviation):,} msgs"
    )


def _delivery(outcome: Outcome) -> str:
    counts = f"Delivery: {outcome.received:,} of {outcome.expected:,}"
    if outcome.interrupted:
        return counts
    order = f"{outcome.disordered:,} out of order"
    scenario, size = find(outcome.plan.scenario), outcome.plan.size_bytes
    if not scenario.counts_subscribers(outcome.plan):
        order = scenario.proof
    elif not (is_checked(size) or scenario.numbered_apart):
        order = f"order not checked (a payload below {HEAD.size} B has no room for it)"
    foreign = f", {outcome.foreign:,} from elsewhere" if outcome.foreign else ""
    return f"{counts}, {outcome.lost:,} lost, {order}{foreign}"


def _latency(outcome: Outcome) -> str:
    histogram = outcome.latency_ns
    values = zip(PERCENTILES, histogram.percentiles(PERCENTILES), strict=True)
    figures = [
        f"{f'p{percent:g}' if percent < 100 else 'max'} {human_time(value)}"
        for percent, value in values
    ]
    return f"Latency: {' | '.join(figures)}{_timed(outcome)}"


def _timed(outcome: Outcome) -> str:
    if outcome.plan.rate:
        return f" (at {outcome.plan.rate:,} msgs/sec)"
    notes = []
    if outcome.latency_ns.count < outcome.received:
        notes.append(f"1 message in {TIMED_EVERY}")
    if find(outcome.plan.scenario).fan_out:
        notes.append("queueing included")
    return f" ({', '.join(notes)})" if notes else ""


def _csv_rows(run: str, outcome: Outcome) -> Iterator[tuple[str | int | float, ...]]:
    for letter, samples in (("S", outcome.subscribers), ("P", outcome.publishers)):
        for index, sample in enumerate(samples):
            yield (
                *(run, f"{letter}{index}", sample.messages, sample.messages * sample.size_bytes),
                *(int(sample.rate), f"{sample.bytes_rate:f}", f"{sample.duration_s:f}"),
                *(outcome.server, outcome.plan.scenario),
            )
