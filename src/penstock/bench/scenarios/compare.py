"""Servers side by side: the suite of shapes, their results, and the table of ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.bench.report.report import human_bytes, human_time
from penstock.bench.report.result import Outcome
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.rounds import by_server, measure, median_round
from penstock.bench.scenarios.runner import RunWatcher
from penstock.bench.scenarios.scenarios import find
from penstock.errors import ConfigError
from penstock.protocol.tables import markdown

DELIVERIES = 1_500_000
"""Messages in and out of a throughput shape, so that all shapes take about the same time."""
QUICKER = 8
"""The factor by which `--quick` reduces them."""

THROUGHPUT, GROWTH, LATENCY, STREAMS = "throughput", "growth", "latency", "streams"


@dataclass(frozen=True)
class Shape:
    """One row of the suite: its plan, and its charts."""

    name: str
    plan: Plan
    charts: tuple[str, ...]
    note: str = ""
    """Why no server could run it."""


@dataclass
class Result:
    """The results of one shape: every round of every server."""

    shape: Shape
    rounds: dict[str, list[Outcome]]

    def outcome(self, server: str) -> Outcome | None:
        """Return the median round of a server."""
        outcomes = self.rounds.get(server)
        return median_round(outcomes) if outcomes else None

    def sound(self, server: str) -> Outcome | None:
        """Return the median round, unless it has errors."""
        outcome = self.outcome(server)
        return outcome if outcome is not None and outcome.sound else None

    def spread(self, server: str) -> tuple[float, float]:
        """Return the lowest and the highest rate of a server."""
        rates = [outcome.rate for outcome in self.rounds[server]]
        return min(rates), max(rates)

    def as_json(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "shape": self.shape.name,
            "note": self.shape.note,
            "rounds": {
                server: [outcome.as_json() for outcome in outcomes]
                for server, outcomes in self.rounds.items()
            },
        }


def suite(base: Plan, *, quick: bool = False, only: str = "") -> list[Shape]:
    """Return the shapes to compare, with the subject and the tuning of `base`."""
    cut = QUICKER if quick else 1
    shapes = [
        *_fan_outs(base, cut),
        *_latencies(base, cut),
        *_streams(base, cut),
    ]
    chosen = [shape for shape in shapes if only.lower() in shape.name.lower()]
    if not chosen:
        raise ConfigError(f"no shape has `{only}` in its name")
    return [_checked(shape) for shape in chosen]


def compare(
    shapes: Sequence[Shape], servers: Sequence[str], *, rounds: int, watcher: RunWatcher
) -> Iterator[Result]:
    """Run every shape on every server. Yield each result as soon as it has an outcome."""
    for shape in shapes:
        result = Result(shape, {})
        yield result
        if shape.note:
            continue
        for outcome in measure(shape.plan, servers, rounds=rounds, watcher=watcher):
            result.rounds.setdefault(outcome.server, []).append(outcome)
            if outcome.interrupted:
                raise KeyboardInterrupt


def of_one_plan(outcomes: Sequence[Outcome]) -> Result:
    """Return the outcomes of one plan as a result for the table."""
    plan = outcomes[0].plan
    return Result(Shape(f"{plan.scenario} {plan.shape}", plan, ()), by_server(outcomes))


@dataclass(frozen=True)
class Line:
    """One line of the table: a figure of a shape on every server."""

    label: str
    figures: Mapping[str, float | None]
    texts: Mapping[str, str]
    more_is_better: bool = False

    def ratio(self, server: str, other: str) -> float | None:
        """Return the figure of one server divided by that of another."""
        mine, theirs = self.figures.get(server), self.figures.get(other)
        return mine / theirs if mine and theirs else None


def lines(result: Result, servers: Sequence[str]) -> list[Line]:
    """Return the lines of one shape: its rate or its latency, and the server's memory."""
    plan, name = result.shape.plan, result.shape.name
    found = {server: result.sound(server) for server in servers}
    if is_about_time(plan):
        rows = [
            _line(f"{name}: p{percent}", found, lambda one, p=percent: _time(one, p), human_time)
            for percent in (50, 99)
        ]
    else:
        rows = [_line(name, found, lambda one: one.rate, human_rate, more_is_better=True)]
    if GROWTH in result.shape.charts:
        rows.append(_line(f"{name}: memory", found, lambda one: one.resident_bytes, human_bytes))
    failed = {server: _failure(result, server) for server in servers}
    return [replace(row, texts={**row.texts, **_only_texts(failed)}) for row in rows]


def render(results: Sequence[Result], servers: Sequence[str]) -> str:
    """Return the table of all results; ratios are the first server's to each other one."""
    first, *others = servers
    header = ["shape", *servers, *(f"{first} / {other}" for other in others)]
    rows = [
        [line.label, *(line.texts[server] for server in servers)]
        + [_ratio_text(line.ratio(first, other)) for other in others]
        for result in results
        for line in lines(result, servers)
    ]
    text = markdown(header, rows)
    return "\n".join([text, *_reasons(results, servers)])


def is_about_time(plan: Plan) -> bool:
    """Tell whether latency is the figure that counts."""
    return plan.rate > 0 or find(plan.scenario).by_latency


def human_rate(rate: float) -> str:
    """Return messages per second, in a short form."""
    if rate >= 999_500:
        return f"{rate / 1e6:.2f} M/s"
    return f"{rate / 1e3:.1f} k/s" if rate >= 9_950 else f"{rate:,.0f} /s"


def _fan_outs(base: Plan, cut: int) -> Iterator[Shape]:
    rows = (
        (1, 1, 128, (THROUGHPUT, GROWTH)),
        (1, 10, 128, (THROUGHPUT, GROWTH)),
        (1, 100, 128, (GROWTH,)),
        (1, 1000, 128, (GROWTH,)),
        (10, 10, 128, (THROUGHPUT,)),
        (10, 100, 1000, (THROUGHPUT,)),
    )
    for publishers, subscribers, size_bytes, charts in rows:
        messages = max(DELIVERIES // cut // (subscribers + 1), publishers)
        plan = replace(
            base,
            publishers=publishers,
            subscribers=subscribers,
            size_bytes=size_bytes,
            messages=messages,
        )
        yield Shape(plan.shape, plan, charts)


def _latencies(base: Plan, cut: int) -> Iterator[Shape]:
    plan = replace(base, messages=8_000 // cut)
    yield Shape("request/reply 128 B", replace(plan, scenario="request"), (LATENCY,))
    paced = replace(plan, rate=5_000, messages=16_000 // cut)
    yield Shape("delivery 128 B at 5,000/s", paced, (LATENCY,))


def _streams(base: Plan, cut: int) -> Iterator[Shape]:
    rows = (
        ("JetStream publish, sync", "js-publish-sync", 4_000),
        ("JetStream publish, async", "js-publish-async", 80_000),
        ("JetStream publish, batch", "js-publish-batch", 80_000),
        ("JetStream pull consume", "js-pull", 80_000),
        ("JetStream push consume", "js-push", 80_000),
        ("KV put", "kv-put", 4_000),
        ("KV get", "kv-get", 4_000),
        ("EventBus end to end", "bus", 20_000),
    )
    for name, scenario, messages in rows:
        plan = replace(base, scenario=scenario, messages=messages // cut)
        yield Shape(f"{name} 128 B", plan, (STREAMS,))


def _checked(shape: Shape) -> Shape:
    try:
        find(shape.plan.scenario).check(shape.plan)
    except ConfigError as error:
        return replace(shape, note=str(error))
    return shape


def _line(
    label: str,
    found: Mapping[str, Outcome | None],
    figure: Any,
    spell: Any,
    *,
    more_is_better: bool = False,
) -> Line:
    figures = {server: figure(one) if one is not None else None for server, one in found.items()}
    texts = {server: spell(value) if value else "-" for server, value in figures.items()}
    return Line(label, figures, texts, more_is_better)


def _time(outcome: Outcome, percent: float) -> int:
    return outcome.latency_ns.percentile(percent)


def _failure(result: Result, server: str) -> str:
    outcome = result.outcome(server)
    if outcome is None or outcome.sound:
        return ""
    return "stopped" if outcome.interrupted else "FAILED"


def _only_texts(texts: Mapping[str, str]) -> dict[str, str]:
    return {server: text for server, text in texts.items() if text}


def _ratio_text(ratio: float | None) -> str:
    return f"{ratio:.2f}" if ratio is not None else "-"


def _reasons(results: Sequence[Result], servers: Sequence[str]) -> list[str]:
    """Return the reason for each missing figure."""
    reasons = [
        f"{result.shape.name}: {result.shape.note}" for result in results if result.shape.note
    ]
    for result in results:
        for server in servers:
            outcome = result.outcome(server)
            if outcome is not None and not outcome.sound and not outcome.interrupted:
                reasons.append(f"{result.shape.name}, {server}: {reason(outcome)}")
    return ["", *reasons] if reasons else []


def reason(outcome: Outcome) -> str:
    """Return the error of a run in one line."""
    if outcome.errors:
        return "; ".join(outcome.errors)
    return f"{outcome.lost:,} messages lost, {outcome.disordered:,} out of order"
