"""`penstock topics`: the topics on the broker, and those that a configuration declares."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import Verb, argument
from penstock.cli.buscommand import WHICH, BusContext, run_bus_command
from penstock.cli.commands import EXIT_FAILURE
from penstock.cli.terminal import table
from penstock.cli.values import show_count, show_duration, show_size
from penstock.errors import ConfigError
from penstock.protocol.times import SECOND_NS

if TYPE_CHECKING:
    from penstock.bus.engine import TopicState
    from penstock.bus.topics.plan import Planner, Step
    from penstock.bus.topics.topics import TopicReport

HEADER = ("BUS", "TOPIC", "MESSAGES", "KEPT")
MEMBERS_HEADER = ("BUS", "SERVICE", "MEMBER", "SLOTS", "")
STRATEGIES = ("create_only", "create_or_update", "validate_only", "skip")

TOPICS = argument("topic", doc="Topics of the configuration (default: all).", nargs="*")
STRATEGY = argument(
    "--strategy",
    doc=f"`{'`, `'.join(STRATEGIES)}` (default: that of the bus).",
    choices=STRATEGIES,
    metavar="STRATEGY",
)


def run(arguments: list[str]) -> int:
    """Run `penstock topics` and return the exit code."""
    return run_bus_command("topics", VERBS, arguments)


async def list_topics(context: BusContext) -> None:
    """List the topics on the broker, of one bus or of each."""
    from penstock.bus.topics.plan import topics_of

    found = [
        (config.namespace, topic, state)
        for config in await context.configs()
        for topic, state in (await topics_of(config)).items()
    ]
    if context.given.json:
        print(json.dumps([_state_as_json(*each) for each in found], indent=2))
    elif found:
        print(table(HEADER, [_row(*each) for each in found], left=2))
    else:
        where = f"in `{context.config.namespace}`" if context.is_named else "on any bus here"
        print(f"penstock: no topics {where}", file=sys.stderr)


async def list_members(context: BusContext) -> None:
    """List the processes of each service, and the slots of the keys that each has."""
    from penstock.bus.topics.plan import services_of

    found = [
        (config.namespace, service, name, slots, name == membership.leader)
        for config in await context.configs()
        for service, membership in (await services_of(config)).items()
        for name, slots in membership.members.items()
    ]
    if context.given.json:
        names = ("bus", "service", "member", "slots", "leads")
        print(json.dumps([dict(zip(names, each, strict=True)) for each in found], indent=2))
    elif found:
        rows = [(*each[:3], show_count(each[3]), "leads" if each[4] else "") for each in found]
        print(table(MEMBERS_HEADER, rows, left=3))
    else:
        print("penstock: no process of any service is here", file=sys.stderr)


async def plan(context: BusContext) -> None:
    """Print what `apply` would do, without changing anything."""
    async with _planner(context) as planner:
        _print_steps(await planner.plan(), context)


async def apply(context: BusContext) -> None:
    """Create and update topics according to the strategy."""
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
    # With `skip` the bus ignores differences, so they must not fail a deployment.
    if strategy != "skip" and not all(report.in_sync for report in reports):
        context.exit_code = EXIT_FAILURE


VERBS = (
    Verb(
        name="list",
        aliases=("ls",),
        summary="List the topics on the broker, of every bus unless one is named.",
        run=list_topics,
        arguments=WHICH,
    ),
    Verb(
        name="members",
        summary="List the processes of each service, and the slots of the keys that each has.",
        run=list_members,
        arguments=WHICH,
    ),
    Verb(
        name="plan",
        summary="Print what `apply` would do, without changing anything.",
        run=plan,
        arguments=(TOPICS, STRATEGY, *WHICH),
    ),
    Verb(
        name="apply",
        summary="Create and update topics according to the strategy.",
        run=apply,
        arguments=(TOPICS, STRATEGY, *WHICH),
    ),
    Verb(
        name="check",
        summary="Report every difference from the broker; exit with 1 if there is any.",
        run=check,
        arguments=(TOPICS, STRATEGY, *WHICH),
    ),
)


def _planner(context: BusContext) -> Planner:
    """Return a planner for the named topics and the chosen strategy."""
    from penstock.bus.topics.plan import Planner

    config, given = context.config, context.given
    unknown = [topic for topic in given.topic if topic not in config.topics]
    if unknown:
        raise ConfigError(f"`{unknown[0]}` is not declared under `topics` of this configuration")
    topics = {topic: config.topics[topic] for topic in given.topic or config.topics}
    if not topics:
        raise ConfigError(
            "no topics are declared, so there is nothing to compare; hint: `--bus` "
            "with a YAML file that has `eventbus: {topics: …}`, or `penstock topics list` for "
            "the topics on the broker"
        )
    strategy = given.strategy or config.strategy
    return Planner(dataclasses.replace(config, strategy=strategy, topics=topics))


def _row(namespace: str, topic: str, state: TopicState) -> tuple[str, ...]:
    options = state.options
    limits = [
        *([f"retention {_seconds(options.retention)}"] if options.retention else []),
        *([f"max_bytes {show_size(options.max_bytes)}"] if options.max_bytes else []),
        *([f"max_msgs {show_count(options.max_msgs)}"] if options.max_msgs else []),
    ]
    kept = "shared" if state.shared else ", ".join(limits) or "forever"
    return (namespace, topic, show_count(state.messages), kept)


def _seconds(seconds: float) -> str:
    return show_duration(round(seconds * SECOND_NS))


def _state_as_json(namespace: str, topic: str, state: TopicState) -> dict[str, Any]:
    options = state.options
    return {
        "bus": namespace,
        "topic": topic,
        "messages": state.messages,
        "shared": state.shared,
        "retention": options.retention,
        "max_bytes": options.max_bytes,
        "max_msgs": options.max_msgs,
        "replicas": options.replicas,
        "partitions": options.partitions,
        "compression": options.compression,
    }


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
