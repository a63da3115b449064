"""
The plan for the declared topics, as the strategy makes it, and its execution.

Planning asks the broker and changes nothing. A plan consists of the same reports that
configuring a topic gives, so the plan and its execution cannot disagree.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from penstock.bus.config.bus import BusConfig
from penstock.bus.engine import Engine, Membership, TopicState
from penstock.bus.opening import engine_of
from penstock.bus.topics.topics import TopicReport, Topics
from penstock.errors import ConfigError, TopicMismatch

Action = Literal["create", "update", "keep", "refuse", "skip", "none"]

SIGNS: dict[Action, str] = {
    "create": "+",
    "update": "~",
    "keep": "=",
    "refuse": "!",
    "skip": "-",
    "none": "=",
}


class Step(NamedTuple):
    """The action planned for one topic, and why."""

    topic: str
    action: Action
    report: TopicReport

    def __str__(self) -> str:
        lines = [f"{SIGNS[self.action]} {self.topic}: {self.action}"]
        lines += [f"    {drift}" for drift in self.report.drifts]
        return "\n".join(lines)


class Planner:
    """Compares the declared topics with the broker's. Use with `async with`."""

    def __init__(self, config: BusConfig) -> None:
        self._config = config
        self._engine = _lasting_engine(config)

    async def __aenter__(self) -> Planner:
        await self._engine.connect()
        self._topics = Topics(self._engine, self._config)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.close()

    async def check(self) -> list[TopicReport]:
        """Compare every declared topic with the broker's, and change nothing."""
        return [await self._topics.check(topic) for topic in sorted(self._config.topics)]

    async def plan(self) -> list[Step]:
        """Return the steps that `apply` would take."""
        strategy = self._config.strategy
        return [
            Step(report.topic, action_for(report, strategy), report)
            for report in await self.check()
        ]

    async def apply(self) -> list[Step]:
        """Apply the strategy to every topic that allows it; return the steps taken."""
        steps = await self.plan()
        for step in steps:
            if step.action in ("create", "update"):
                await self._configure(step.topic)
        return steps

    async def _configure(self, topic: str) -> None:
        try:
            await self._topics.configure(topic, self._config.topics[topic])
        except TopicMismatch as error:
            raise ConfigError(f"it changed while the plan was made: {error}") from error


async def topics_of(config: BusConfig) -> dict[str, TopicState]:
    """Return the state of every topic that the broker keeps for a bus."""
    engine = _lasting_engine(config)
    await engine.connect()
    try:
        return await engine.topics()
    finally:
        await engine.close()


async def services_of(config: BusConfig) -> dict[str, Membership]:
    """Return the members of each service of a bus."""
    engine = _lasting_engine(config)
    await engine.connect()
    try:
        return await engine.services()
    finally:
        await engine.close()


def _lasting_engine(config: BusConfig) -> Engine:
    if config.type == "embedded" and not config.embedded.store_dir:
        raise ConfigError(
            "this bus keeps its topics only while it is open; hint: set `embedded.store_dir`"
        )
    return engine_of(config)


def action_for(report: TopicReport, strategy: str) -> Action:
    """Return the action of a strategy for a topic with this report."""
    if report.action == "ephemeral":
        return "none"
    if strategy == "skip":
        return "skip"
    if report.in_sync:
        return "keep"
    if strategy == "validate_only":
        return "refuse"
    if not report.exists:
        return "create"
    if strategy == "create_only":
        return "keep"
    return "update" if all(drift.fixable for drift in report.drifts) else "refuse"
