"""
Every scenario, as a table.

A scenario has up to two sides, each a coroutine that every client of that side runs; a
preparation before the clock starts; and a definition of complete.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.bench.load import bus, core, jetstream
from penstock.bench.load.part import Part
from penstock.bench.scenarios.plan import Plan
from penstock.errors import ConfigError
from penstock.protocol.suggestions import nearest

Work: TypeAlias = Callable[[Part], Awaitable[None]]
Hook: TypeAlias = Callable[[Plan, str], Coroutine[Any, Any, None]]
Count: TypeAlias = Callable[[Plan, str], Coroutine[Any, Any, int]]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One row of the table."""

    name: str
    title: str
    """Its name in the report."""
    summary: str
    publish: Work | None = None
    subscribe: Work | None = None
    sides: tuple[str, str] = ("Pub", "Sub")
    """The names of the two sides in the report."""
    prepare: Hook | None = None
    clean: Hook | None = None
    stored: Count | None = None
    """Returns the number of messages stored, according to the server."""
    fan_out: bool = False
    """Whether every subscriber gets every message; if not, the publishers' counts decide."""
    by_latency: bool = False
    """Whether each message waits for the previous one, so that latency is what counts."""
    proof: str = "each acked"
    """How the publishers know that a message was handled, where their counts decide."""
    numbered_apart: bool = False
    """Whether messages have their number beside the payload instead of in its first bytes."""
    modules: tuple[str, ...] = ()
    """The modules that it needs."""

    @property
    def uses_jetstream(self) -> bool:
        """Whether the server needs JetStream."""
        return self.prepare is not None

    def clients(self, plan: Plan) -> tuple[int, int]:
        """Return the number of clients on each side."""
        publishers = plan.publishers if self.publish else 0
        subscribers = plan.subscribers if self.subscribe else 0
        return publishers, subscribers

    def expected(self, plan: Plan) -> int:
        """Return the number of messages that the deciding side should handle."""
        subscribers = self.clients(plan)[1]
        return plan.messages * subscribers if self.counts_subscribers(plan) else plan.messages

    def counts_subscribers(self, plan: Plan) -> bool:
        """Whether the messages received by the subscribers are what counts."""
        return self.fan_out and self.clients(plan)[1] > 0

    def check(self, plan: Plan) -> None:
        """Raise if the plan is invalid, or if the scenario cannot run here."""
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                hint = f"pip install 'penstock[{self.name}]'"
                raise ConfigError(
                    f"`{self.name}` cannot run: `{module}` is not installed; hint: {hint}"
                )
        if plan.rate and self.publish is not core.publish:
            raise ConfigError(f"`{self.name}` does not support a rate; hint: --scenario pubsub")
        if self.publish is not None and plan.publishers < 1:
            raise ConfigError(f"`{self.name}` needs a publisher: --num-pubs 1")
        if self.subscribe is not None and self.publish is not core.publish and not plan.subscribers:
            raise ConfigError(f"`{self.name}` needs a subscriber: --num-subs 1")


def _publish(name: str, title: str, summary: str, work: Work, *, by_latency: bool) -> Scenario:
    return Scenario(
        name=name,
        title=title,
        summary=summary,
        publish=work,
        prepare=jetstream.make_stream,
        clean=jetstream.clean,
        stored=jetstream.stored,
        by_latency=by_latency,
    )


def _consume(name: str, title: str, summary: str, work: Work) -> Scenario:
    return Scenario(
        name=name,
        title=title,
        summary=summary,
        subscribe=work,
        prepare=jetstream.make_full_stream,
        clean=jetstream.clean,
        fan_out=True,
    )


def _bucket(name: str, title: str, summary: str, work: Work, prepare: Hook, side: str) -> Scenario:
    return Scenario(
        name=name,
        title=title,
        summary=summary,
        publish=work,
        sides=(side, ""),
        prepare=prepare,
        clean=jetstream.clean,
        by_latency=True,
    )


_ALL = (
    Scenario(
        name="pubsub",
        title="NATS Pub/Sub",
        summary="Core NATS: every subscriber gets every message of every publisher.",
        publish=core.publish,
        subscribe=core.subscribe,
        fan_out=True,
        proof="nobody subscribed",
    ),
    Scenario(
        name="request",
        title="NATS Request/Reply",
        summary="Core NATS: requests one after another, answered by a queue group.",
        publish=core.ask,
        subscribe=core.answer,
        sides=("Request", "Reply"),
        by_latency=True,
        proof="each answered",
    ),
    _publish(
        "js-publish-sync",
        "JetStream synchronous publish",
        "JetStream: each message waits for the ack of the previous one.",
        jetstream.publish_sync,
        by_latency=True,
    ),
    _publish(
        "js-publish-async",
        "JetStream asynchronous publish",
        "JetStream: a window of unacked messages.",
        jetstream.publish_async,
        by_latency=False,
    ),
    _publish(
        "js-publish-batch",
        "JetStream batch publish",
        "JetStream: batches, each acked as a whole before the next.",
        jetstream.publish_batch,
        by_latency=False,
    ),
    _consume(
        "js-pull",
        "JetStream pull consume",
        "JetStream: a full stream pulled in batches, every message acked.",
        jetstream.pull,
    ),
    _consume(
        "js-push",
        "JetStream push consume",
        "JetStream: a full stream pushed, every message acked.",
        jetstream.push,
    ),
    _bucket(
        "kv-put",
        "Key/Value put",
        "Key/Value: values put one after another, over 1000 keys.",
        jetstream.put,
        jetstream.make_bucket,
        "Put",
    ),
    _bucket(
        "kv-get",
        "Key/Value get",
        "Key/Value: values read one after another, over 1000 keys.",
        jetstream.get,
        jetstream.make_full_bucket,
        "Get",
    ),
    Scenario(
        name="bus",
        title="EventBus end to end",
        summary="EventBus: events published, stored, and handled in order by aggregate.",
        publish=bus.publish,
        subscribe=bus.subscribe,
        prepare=bus.prepare,
        clean=bus.clean,
        fan_out=True,
        numbered_apart=True,
        modules=bus.MODULES,
    ),
)

SCENARIOS = {scenario.name: scenario for scenario in _ALL}


def find(name: str) -> Scenario:
    """Return the scenario with this name."""
    if name not in SCENARIOS:
        meant = nearest(name, SCENARIOS)
        hint = f"did you mean `{meant}`?" if meant else "see `penstock bench scenarios`"
        raise ConfigError(f"there is no scenario `{name}`; hint: {hint}")
    return SCENARIOS[name]
