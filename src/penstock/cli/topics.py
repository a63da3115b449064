"""`penstock topics`: the topics that a configuration declares, beside the broker's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.bus.config import BusConfig
from penstock.bus.topicplan import Planner, Step
from penstock.bus.topics import TopicReport
from penstock.cli.busflags import EXIT_FAILURE, Action, run_action
from penstock.errors import ConfigError
from penstock.flags import Flag

STRATEGIES = ("create_only", "create_or_update", "validate_only", "skip")
FLAGS = (
    Flag(names=("strategy",), kind=str, doc=f"{', '.join(STRATEGIES)}; else the bus's own."),
    Flag(names=("json",), kind=bool, doc="Print JSON."),
)


def run(arguments: list[str]) -> int:
    """Run `penstock topics` and return the exit code."""
    return run_action("topics", arguments, actions=ACTIONS, flags=FLAGS)


async def plan(config: BusConfig, flags: Mapping[str, Any], words: Sequence[str]) -> int:
    """Say what `apply` would do, and change nothing."""
    async with Planner(_declared(config, flags, words)) as planner:
        return _print_steps(await planner.plan(), flags)


async def apply(config: BusConfig, flags: Mapping[str, Any], words: Sequence[str]) -> int:
    """Create and update topics as the strategy says."""
    async with Planner(_declared(config, flags, words)) as planner:
        return _print_steps(await planner.apply(), flags)


async def check(config: BusConfig, flags: Mapping[str, Any], words: Sequence[str]) -> int:
    """Report every difference from the broker; exit with 1 if there is one."""
    async with Planner(_declared(config, flags, words)) as planner:
        reports = await planner.check()
    if flags.get("json"):
        print(json.dumps([_as_json(report) for report in reports], indent=2))
    else:
        print("\n".join(map(str, reports)))
    return 0 if all(report.in_sync for report in reports) else EXIT_FAILURE


ACTIONS: Mapping[str, Action] = {"plan": plan, "apply": apply, "check": check}


def _declared(config: BusConfig, flags: Mapping[str, Any], words: Sequence[str]) -> BusConfig:
    """Return the configuration with the strategy that was asked for, and the topics named."""
    strategy = str(flags.get("strategy", config.strategy)).replace("-", "_")
    if strategy not in STRATEGIES:
        raise ConfigError(f"`{strategy}` is none of {', '.join(STRATEGIES)}")
    unknown = [topic for topic in words if topic not in config.topics]
    if unknown:
        raise ConfigError(f"`{unknown[0]}` is not under `topics` of this configuration")
    topics = {topic: config.topics[topic] for topic in words or config.topics}
    if not topics:
        raise ConfigError("this configuration declares no topics; hint: `eventbus: {topics: …}`")
    return dataclasses.replace(config, strategy=strategy, topics=topics)  # type: ignore[arg-type]


def _print_steps(steps: Sequence[Step], flags: Mapping[str, Any]) -> int:
    if flags.get("json"):
        rows = [_as_json(step.report) | {"action": step.action} for step in steps]
        print(json.dumps(rows, indent=2))
    else:
        print("\n".join(map(str, steps)))
    return EXIT_FAILURE if any(step.action == "refuse" for step in steps) else 0


def _as_json(report: TopicReport) -> dict[str, Any]:
    return {
        "topic": report.topic,
        "exists": report.exists,
        "drifts": [drift._asdict() for drift in report.drifts],
    }
