"""
What the strategy would do about the declared topics, and doing it.

A plan asks the broker and changes nothing. It is made of the same reports that
configuring a topic gives, so a plan and what follows it cannot disagree.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from penstock.bus.config.bus import BusConfig
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
    """What is to be done about one topic, and why."""

    topic: str
    action: Action
    report: TopicReport

    def __str__(self) -> str:
        lines = [f"{SIGNS[self.action]} {self.topic}: {self.action}"]
        lines += [f"    {drift}" for drift in self.report.drifts]
        return "\n".join(lines)


class Planner:
    """The topics that a configuration declares, beside the broker's. Use with `async with`."""

    def __init__(self, config: BusConfig) -> None:
        if config.type == "embedded" and not config.embedded.store_dir:
            raise ConfigError(
                "this bus keeps its topics only while it is open; hint: set `embedded.store_dir`"
            )
        self._config = config
        self._engine = engine_of(config)

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
        """Return what `apply` would do."""
        strategy = self._config.strategy
        return [
            Step(report.topic, action_for(report, strategy), report)
            for report in await self.check()
        ]

    async def apply(self) -> list[Step]:
        """Do what the strategy says about every topic that can be helped; return what was done."""
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


def action_for(report: TopicReport, strategy: str) -> Action:
    """Return what a strategy does about a topic that was found like this."""
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
