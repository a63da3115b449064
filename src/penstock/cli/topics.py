"""`penstock topics`: the topics that a configuration declares, beside the broker's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.buscommand import WHICH, BusContext, run_bus_command
from penstock.cli.main import EXIT_FAILURE
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.bus.topics.plan import Planner, Step
    from penstock.bus.topics.topics import TopicReport

STRATEGIES = ("create_only", "create_or_update", "validate_only", "skip")

TOPICS = argument("topic", doc="Topics of the configuration; all, if none is named.", nargs="*")
STRATEGY = argument(
    "--strategy",
    doc=f"`{'`, `'.join(STRATEGIES)}`; else the bus's own.",
    choices=STRATEGIES,
    metavar="STRATEGY",
)


def run(arguments: list[str]) -> int:
    """Run `penstock topics` and return the exit code."""
    return run_bus_command("topics", VERBS, arguments)


async def plan(context: BusContext) -> None:
    """Say what `apply` would do, and change nothing."""
    async with _planner(context) as planner:
        _print_steps(await planner.plan(), context)


async def apply(context: BusContext) -> None:
    """Create and update topics as the strategy says."""
    async with _planner(context) as planner:
        _print_steps(await planner.apply(), context)


async def check(context: BusContext) -> None:
    """Report every difference from the broker."""
    async with _planner(context) as planner:
        reports = await planner.check()
    if context.given.json:
        print(json.dumps([_as_json(report) for report in reports], indent=2))
    else:
        print("\n".join(map(str, reports)))
    strategy = context.given.strategy or context.config.strategy
    # With `skip` the bus minds no difference, so a deployment is not to fail of one.
    if strategy != "skip" and not all(report.in_sync for report in reports):
        context.exit_code = EXIT_FAILURE


VERBS = (
    Verb(
        name="plan",
        summary="Say what `apply` would do, and change nothing.",
        run=plan,
        arguments=(TOPICS, STRATEGY, *WHICH),
    ),
    Verb(
        name="apply",
        summary="Create and update topics as the strategy says.",
        run=apply,
        arguments=(TOPICS, STRATEGY, *WHICH),
    ),
    Verb(
        name="check",
        summary="Report every difference from the broker; exit with 1 if there is one.",
        run=check,
        arguments=(TOPICS, STRATEGY, *WHICH),
    ),
)


def _planner(context: BusContext) -> Planner:
    """Return a planner of the topics named, with the strategy asked for."""
    from penstock.bus.topics.plan import Planner

    config, given = context.config, context.given
    unknown = [topic for topic in given.topic if topic not in config.topics]
    if unknown:
        raise ConfigError(f"`{unknown[0]}` is not under `topics` of this configuration")
    topics = {topic: config.topics[topic] for topic in given.topic or config.topics}
    if not topics:
        raise ConfigError("this configuration declares no topics; hint: `eventbus: {topics: …}`")
    strategy = given.strategy or config.strategy
    return Planner(dataclasses.replace(config, strategy=strategy, topics=topics))


def _print_steps(steps: Sequence[Step], context: BusContext) -> None:
    if context.given.json:
        rows = [_as_json(step.report) | {"action": step.action} for step in steps]
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(map(str, steps)))
    if any(step.action == "refuse" for step in steps):
        context.exit_code = EXIT_FAILURE


def _as_json(report: TopicReport) -> dict[str, Any]:
    return {
        "topic": report.topic,
        "exists": report.exists,
        "drifts": [drift._asdict() for drift in report.drifts],
    }
