"""
The history of results on this machine, to detect regressions.

One line of JSON per result. A result is compared only with earlier ones of the same
scenario, shape, server and machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from penstock.bench.report import machine
from penstock.bench.report.result import Outcome, latency_json
from penstock.bench.scenarios.scenarios import SCENARIOS

RECENT = 10
"""The number of earlier results to compare a new one with."""
REGRESSION = 0.15
"""A result is a regression if it is worse than their median by this share."""
SPARKS = "▁▂▃▄▅▆▇█"


def path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the history."""
    base = environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base, "penstock", "bench.jsonl")


def entry(outcome: Outcome) -> dict[str, Any]:
    """Return the fields of an outcome that are kept."""
    plan = outcome.plan
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": machine.describe(),
        "server": outcome.server,
        "version": outcome.version,
        "scenario": plan.scenario,
        "publishers": plan.publishers,
        "subscribers": plan.subscribers,
        "messages": plan.messages,
        "size_bytes": plan.size_bytes,
        "rate_limit": plan.rate,
        "storage": plan.storage,
        "rate": round(outcome.rate, 1),
        "latency_ns": latency_json(outcome.latency_ns),
        "resident_bytes": outcome.resident_bytes,
    }


def append(outcomes: Iterable[Outcome], where: Path) -> None:
    """Keep the sound outcomes: a result with losses does not measure speed."""
    lines = [json.dumps(entry(outcome)) + "\n" for outcome in outcomes if outcome.sound]
    if lines:
        where.parent.mkdir(parents=True, exist_ok=True)
        with where.open("a", encoding="utf-8") as file:
            file.write("".join(lines))


def read(where: Path) -> list[dict[str, Any]]:
    """Return every entry, oldest first; skip truncated lines."""
    try:
        lines = where.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    entries = []
    for line in lines:
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The results of one scenario and shape on one server, oldest first."""

    scenario: str
    shape: str
    server: str
    entries: Sequence[Mapping[str, Any]]

    @property
    def by_latency(self) -> bool:
        """Whether latency counts, where less is better."""
        scenario = SCENARIOS.get(self.scenario)
        paced = bool(self.entries[-1]["rate_limit"])
        return paced or (scenario is not None and scenario.by_latency)

    @property
    def values(self) -> list[float]:
        """The values that count: messages per second, or the median latency in ns."""
        if self.by_latency:
            return [entry["latency_ns"]["p50"] for entry in self.entries if entry["latency_ns"]]
        return [entry["rate"] for entry in self.entries]

    @property
    def change(self) -> float | None:
        """The last result relative to the median of those before it: 0.1 is 10 % better."""
        *before, last = self.values or [0.0]
        if not before or not last:
            return None
        usual = median(before[-RECENT:])
        return usual / last - 1 if self.by_latency else last / usual - 1

    @property
    def regressed(self) -> bool:
        """Whether the last result is worse than chance explains."""
        return self.change is not None and self.change < -REGRESSION

    @property
    def sparks(self) -> str:
        """The last results as a line of small bars."""
        recent = self.values[-2 * RECENT :]
        top = max(recent, default=0.0)
        return "".join(SPARKS[round(value / top * 7)] for value in recent) if top else ""


def trends(entries: Iterable[Mapping[str, Any]]) -> list[Trend]:
    """Return the entries, grouped by comparable results."""
    grouped: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    names = ("machine", "scenario", "server", "publishers", "subscribers", "size_bytes")
    for item in entries:
        key = tuple(item[name] for name in (*names, "rate_limit", "storage"))
        grouped.setdefault(key, []).append(item)
    return [
        Trend(scenario=key[1], server=key[2], shape=_shape(members[-1]), entries=members)
        for key, members in grouped.items()
    ]


def _shape(item: Mapping[str, Any]) -> str:
    shape = f"{item['publishers']} x {item['subscribers']} x {item['size_bytes']} B"
    return f"{shape} at {item['rate_limit']:,}/s" if item["rate_limit"] else shape
