"""One run: prepare, start the clients, watch, and combine their measurements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from penstock.bench.load.processes import CrewError, LoadProcesses, Member
from penstock.bench.report.histogram import Histogram
from penstock.bench.report.result import Outcome, Tally
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.scenarios import Scenario, find
from penstock.errors import PenstockError


class MeasuredServer(Protocol):
    """A server to measure."""

    @property
    def url(self) -> str:
        """Where clients connect to."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    @property
    def version(self) -> str:
        """Its own name and version."""

    @property
    def resident_bytes(self) -> int | None:
        """Its resident memory, if it can be known."""


class RunWatcher(Protocol):
    """Shows the progress of a run."""

    def show(self, plan: Plan, server: str, done: int, expected: int) -> None:
        """Show the number of messages handled."""

    def clear(self) -> None:
        """Remove the display: the run is over."""


def run(plan: Plan, target: MeasuredServer, watcher: RunWatcher) -> Outcome:
    """
    Run a scenario once.

    Errors of the server do not raise: they are part of the outcome. An interrupt ends the
    run early, which the outcome notes.
    """
    scenario = find(plan.scenario)
    scenario.check(plan)
    outcome = Outcome(plan=plan, server=target.name, version=target.version)
    outcome.expected = scenario.expected(plan)
    try:
        if scenario.prepare is not None:
            asyncio.run(scenario.prepare(plan, target.url))
        _measure(scenario, target, watcher, outcome)
        if scenario.stored is not None:
            _compare_with_store(outcome, asyncio.run(scenario.stored(plan, target.url)))
    except (PenstockError, CrewError, OSError) as error:
        outcome.errors = [*outcome.errors, str(error)]
    except KeyboardInterrupt:
        outcome.interrupted = True
    finally:
        watcher.clear()
        _clean(scenario, plan, target)
    return outcome


def _measure(
    scenario: Scenario, target: MeasuredServer, watcher: RunWatcher, outcome: Outcome
) -> None:
    plan = outcome.plan
    with LoadProcesses(plan, target.url) as crew:
        crew.prepare()
        problem = ""
        try:
            crew.start()
            problem = _watch(crew, scenario, watcher, outcome)
        except KeyboardInterrupt:
            outcome.interrupted = True
        # The clients are still connected: this is the memory for serving them.
        outcome.resident_bytes = target.resident_bytes
        crew.stop()
        _put_together(crew, scenario, outcome)
        outcome.errors = crew.errors() + ([problem] if problem else [])


def _watch(crew: LoadProcesses, scenario: Scenario, watcher: RunWatcher, outcome: Outcome) -> str:
    """Return when all clients are done, or with the reason why they never will be."""
    plan = outcome.plan
    awaited = _awaited(crew.members, scenario, plan)
    first, last = _counted_slots(scenario, plan)
    moved_s, before = time.monotonic(), -1
    while not crew.done(awaited):
        crew.listen()
        handled = sum(crew.counters)
        if handled != before:
            moved_s, before = time.monotonic(), handled
        elif time.monotonic() - moved_s > plan.stall_s:
            return f"aborted: no progress for {plan.stall_s:g} s"
        watcher.show(plan, outcome.server, sum(crew.counters[first:last]), outcome.expected)
    return ""


def _awaited(members: Sequence[Member], scenario: Scenario, plan: Plan) -> list[Member]:
    """Return the processes that end by themselves: responders do not know when it is over."""
    endless = scenario.subscribe is not None and not scenario.fan_out
    return [member for member in members if member.job.publishing or not endless]


def _counted_slots(scenario: Scenario, plan: Plan) -> tuple[int, int]:
    publishers, subscribers = scenario.clients(plan)
    if scenario.counts_subscribers(plan):
        return publishers, publishers + subscribers
    return 0, publishers


def _put_together(crew: LoadProcesses, scenario: Scenario, outcome: Outcome) -> None:
    publishers = crew.tallies(publishing=True)
    subscribers = crew.tallies(publishing=False)
    counted = subscribers if scenario.counts_subscribers(outcome.plan) else publishers
    outcome.publishers = [tally.sample for tally in publishers]
    outcome.subscribers = [tally.sample for tally in subscribers]
    outcome.received = sum(tally.sample.messages for tally in counted)
    outcome.disordered = sum(tally.disordered for tally in counted)
    outcome.foreign = sum(tally.foreign for tally in counted)
    outcome.latency_ns = _latency_ns(counted)


def _latency_ns(tallies: Sequence[Tally]) -> Histogram:
    merged = Histogram()
    for tally in tallies:
        merged.merge(tally.latency_ns)
    return merged


def _compare_with_store(outcome: Outcome, stored: int) -> None:
    """Check that every acked message is in the stream: an ack is a promise."""
    if stored < outcome.received:
        outcome.errors = [
            *outcome.errors,
            f"{outcome.received - stored} messages were acked but are not in the stream",
        ]
        outcome.received = stored


def _clean(scenario: Scenario, plan: Plan, target: MeasuredServer) -> None:
    """Delete the scenario's streams; a dead server has none."""
    if scenario.clean is None:
        return
    try:
        asyncio.run(scenario.clean(plan, target.url))
    except (PenstockError, OSError):
        return
