"""Several rounds on several servers that take turns, and the round that counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from penstock.bench.report.result import Outcome
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.runner import Target, Watcher, run
from penstock.bench.scenarios.scenarios import find
from penstock.bench.scenarios.servers import open_server
from penstock.errors import PenstockError


def measure(
    plan: Plan, servers: Sequence[str], *, rounds: int, watcher: Watcher
) -> Iterator[Outcome]:
    """
    Run a plan in rounds, each on every server, and yield the outcomes.

    What else the machine does meanwhile, it does to all of them. An interrupt
    ends it after the outcome of the run that it struck.
    """
    with ExitStack() as stack:
        targets: list[Target] = []
        for name in servers:
            try:
                jetstream = find(plan.scenario).uses_jetstream
                targets.append(stack.enter_context(open_server(name, jetstream=jetstream)))
            except (PenstockError, OSError) as error:
                yield Outcome(plan=plan, server=name, errors=[str(error)])
        for _ in range(rounds):
            for target in targets:
                outcome = run(plan, target, watcher)
                yield outcome
                if outcome.interrupted:
                    return


def by_server(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return the outcomes of each server, in the order they were first seen."""
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.server, []).append(outcome)
    return grouped


def median_round(outcomes: Sequence[Outcome]) -> Outcome:
    """
    Return the round in the middle: neither lucky nor disturbed.

    A round that lost messages is worse news than any figure, so it comes first. One
    that was cut short counts only if there is no other.
    """
    whole = [outcome for outcome in outcomes if not outcome.interrupted] or outcomes
    failed = [outcome for outcome in whole if not outcome.sound]
    ordered = failed[:1] or sorted(whole, key=lambda outcome: outcome.rate)
    return ordered[len(ordered) // 2]
