"""
Engines of the event bus side by side: the same events, handlers and durability.

Each broker syncs a message to disk before it acks it. Every load runs in its own process,
the engines take turns, and the round with the median rate counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from penstock.bench.report.report import human_bytes, human_time
from penstock.bench.scenarios.servers import started
from penstock.errors import ConfigError, PenstockError
from penstock.net.process import resident_bytes
from penstock.protocol.tables import markdown

LOADS = (500, 2_000, 5_000, 10_000)
"""The number of events of each step, as in the comparison that this one answers."""
QUICK_LOADS = (500, 2_000)
RUN_S_MAX = 300.0
NAMES = ("embedded", "nats", "kafka")

KAFKA_SETTINGS = ("log.flush.interval.messages=1",)
"""Kafka syncs before it acks only if configured."""


@dataclass(frozen=True)
class EngineAddress:
    """The address of an engine, and its process if it is not in the program itself."""

    url: str
    pid: int | None = None


@dataclass(frozen=True)
class LoadFigures:
    """The results of one load on one engine."""

    engine: str
    messages: int
    rate: float
    latency_ns_50: int
    latency_ns_99: int
    program_bytes: int
    broker_bytes: int
    tasks: int
    threads: int
    disordered: int


class ComparedFigure:
    """One figure to compare: its name, how to read it, and how to format it."""

    def __init__(
        self, name: str, read: Callable[[LoadFigures], float], spell: Callable[[float], str]
    ) -> None:
        self.name = name
        self.read = read
        self.spell = spell


METRICS = (
    ComparedFigure("events/s", lambda one: one.rate, lambda value: f"{value:,.0f}"),
    ComparedFigure(
        "latency p50", lambda one: one.latency_ns_50, lambda value: human_time(int(value))
    ),
    ComparedFigure(
        "latency p99", lambda one: one.latency_ns_99, lambda value: human_time(int(value))
    ),
    ComparedFigure("memory, program", lambda one: one.program_bytes, human_bytes),
    ComparedFigure(
        "memory, broker",
        lambda one: one.broker_bytes,
        lambda value: human_bytes(value) if value else "-",
    ),
    ComparedFigure("tasks", lambda one: one.tasks, lambda value: f"{value:,.0f}"),
    ComparedFigure("threads", lambda one: one.threads, lambda value: f"{value:,.0f}"),
)


def parse(text: str) -> tuple[str, ...]:
    """Return the engines of a comma-separated list; raise for an unknown one."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"there is no engine `{name}`; hint: {', '.join(NAMES)}")
    return names


def compare(
    engines: Sequence[str], *, loads: Sequence[int], rounds: int, say: Callable[[str], None]
) -> Iterator[LoadFigures]:
    """Run every load on every engine; yield the median round of each."""
    with ExitStack() as stack:
        brokers = {engine: _start(engine, stack) for engine in engines}
        for messages in loads:
            found: dict[str, list[LoadFigures]] = {engine: [] for engine in engines}
            for number in range(rounds):
                for engine in engines:
                    say(f"{messages:,} events on {engine}, round {number + 1} of {rounds}")
                    found[engine].append(_run(engine, brokers[engine], messages))
            for each in found.values():
                yield sorted(each, key=lambda one: one.rate)[len(each) // 2]


def render(figures: Sequence[LoadFigures], engines: Sequence[str]) -> str:
    """Return the table, with a line for each figure of each load."""
    rows = [
        [f"{messages:,} events: {metric.name}", *_texts(figures, engines, messages, metric)]
        for messages in dict.fromkeys(one.messages for one in figures)
        for metric in METRICS
    ]
    return markdown(["load", *engines], rows)


def of(figures: Sequence[LoadFigures], engine: str, messages: int) -> LoadFigures | None:
    """Return the figures of one engine under one load."""
    found = (one for one in figures if (one.engine, one.messages) == (engine, messages))
    return next(found, None)


def _texts(
    figures: Sequence[LoadFigures], engines: Sequence[str], messages: int, metric: ComparedFigure
) -> list[str]:
    found = [of(figures, engine, messages) for engine in engines]
    return ["-" if one is None else metric.spell(metric.read(one)) for one in found]


def _start(engine: str, stack: ExitStack) -> EngineAddress:
    if engine == "embedded":
        return EngineAddress("embedded:")
    if engine == "nats":
        server = stack.enter_context(started("nats-sync", jetstream=True))
        return EngineAddress(server.url, server.pid)
    from penstock.bus.testing.kafka import KafkaBroker

    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
    broker = stack.enter_context(KafkaBroker(directory, settings=KAFKA_SETTINGS))
    return EngineAddress(broker.url, broker.pid)


def _run(engine: str, broker: EngineAddress, messages: int) -> LoadFigures:
    command = [sys.executable, "-m", "penstock.bench.load.engineload", broker.url, str(messages)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S_MAX, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise EngineFailed(f"{messages:,} events on {engine}: {lines[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    if found["disordered"]:
        raise EngineFailed(f"{engine}: {found['disordered']:,} events came out of order")
    return LoadFigures(
        engine=engine,
        messages=messages,
        rate=found["rate"],
        latency_ns_50=found["latency_ns"]["p50"],
        latency_ns_99=found["latency_ns"]["p99"],
        program_bytes=found["resident_bytes"],
        broker_bytes=resident_bytes(broker.pid) if broker.pid is not None else 0,
        tasks=found["tasks"],
        threads=found["threads"],
        disordered=found["disordered"],
    )


class EngineFailed(PenstockError):
    """A load could not be run, or its events were out of order."""
