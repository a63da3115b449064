"""Several rounds on several servers in turn, and the median round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from penstock.bench.report.result import Outcome
from penstock.bench.scenarios.plan import Plan
from penstock.bench.scenarios.runner import MeasuredServer, RunWatcher, run
from penstock.bench.scenarios.scenarios import find
from penstock.bench.scenarios.servers import open_server
from penstock.bench.scenarios.turns import in_turns
from penstock.errors import PenstockError


def measure(
    plan: Plan, servers: Sequence[str], *, rounds: int, watcher: RunWatcher
) -> Iterator[Outcome]:
    """
    Run a plan in rounds, each on every server, and yield the outcomes.

    The servers take turns, so that other load on the machine affects all of them. An
    interrupt ends the rounds after the outcome of the interrupted run.
    """
    with ExitStack() as stack:
        targets: list[MeasuredServer] = []
        for name in servers:
            try:
                jetstream = find(plan.scenario).uses_jetstream
                targets.append(stack.enter_context(open_server(name, jetstream=jetstream)))
            except (PenstockError, OSError) as error:
                yield Outcome(plan=plan, server=name, errors=[str(error)])
        for target in in_turns(targets, rounds):
            outcome = run(plan, target, watcher)
            yield outcome
            if outcome.interrupted:
                return


def by_server(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Return the outcomes by server, in the order of their first appearance."""
    grouped: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(outcome.server, []).append(outcome)
    return grouped


def median_round(outcomes: Sequence[Outcome]) -> Outcome:
    """
    Return the median round: neither lucky nor disturbed.

    A round that lost messages matters more than any figure, so it comes first. An
    interrupted round counts only if there is no other.
    """
    whole = [outcome for outcome in outcomes if not outcome.interrupted] or outcomes
    failed = [outcome for outcome in whole if not outcome.sound]
    ordered = failed[:1] or sorted(whole, key=lambda outcome: outcome.rate)
    return ordered[len(ordered) // 2]
