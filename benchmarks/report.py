"""The measurements, as a table for people and as JSON for programs."""

import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks import machine
from benchmarks.machine import OTHERS_SHARE_MAX
from benchmarks.shapes import Goal, Shape
from benchmarks.table import markdown

OURS, THEIRS, PURE = "ours", "theirs", "pure"


@dataclass
class Row:
    """One line of the table: a figure of a shape, from every server and round."""

    shape: Shape
    goal: Goal
    rounds: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    others: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.shape.name}: {self.goal.label}" if self.goal.label else self.shape.name

    def value(self, server: str) -> float | None:
        """Return the best rate, the median time, or the last memory, once it has settled."""
        values = self.rounds.get(server)
        if not values or server in self.failures:
            return None
        if self.goal.unit == "MB":
            return values[-1]
        return max(values) if self.goal.more_is_better else median(values)

    def others_share(self) -> float:
        """Return the average share of the machine that other processes took."""
        return mean(self.others) if self.others else 0.0

    def is_noisy(self) -> bool:
        """Tell whether a comparison of speed is in doubt. Memory does not depend on other load."""
        return self.goal.unit != "MB" and self.others_share() > OTHERS_SHARE_MAX

    def ratio(self, server: str = OURS) -> float | None:
        """Return the figure of `server` divided by nats-server's."""
        value, theirs = self.value(server), self.value(THEIRS)
        return value / theirs if value and theirs else None

    def is_met(self) -> bool | None:
        """Tell whether our figure meets the goal; None if it could not be compared."""
        value = self.value(OURS) if self.goal.absolute else self.ratio()
        if value is None:
            return False if OURS in self.failures else None
        return value >= self.goal.bound if self.goal.more_is_better else value <= self.goal.bound

    def as_json(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "shape": self.name,
            "unit": self.goal.unit,
            "value": {server: self.value(server) for server in self.rounds},
            "ratio": self.ratio(),
            "goal": str(self.goal),
            "met": self.is_met(),
            "noisy": self.is_noisy(),
            "others_share": self.others_share(),
            "rounds": self.rounds,
            "failures": self.failures,
        }


def header(programs: dict[str, tuple[str, ...]], varz: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the machine and the versions of the servers."""
    servers = {
        name: f"{_identity(varz[name])}, `{shlex.join([Path(command[0]).name, *command[1:]])}`"
        for name, command in programs.items()
    }
    return {"date": time.strftime("%Y-%m-%d %H:%M %Z"), "machine": machine.describe(), **servers}


def table(rows: Iterable[Row], *, with_pure: bool) -> str:
    """Return the rows as a Markdown table with aligned columns."""
    titles = ["shape", "ours", "theirs", "ratio", "goal", "met", "others"]
    lines = [_cells(row, with_pure=with_pure) for row in rows]
    if with_pure:
        titles += ["pure", "pure ratio"]
    return markdown(titles, lines)


def summary(rows: Iterable[Row]) -> str:
    """Return the number of goals met, and every failure in full."""
    rows = list(rows)
    compared = [row for row in rows if row.is_met() is not None]
    met = sum(row.is_met() is True and not row.is_noisy() for row in compared)
    in_doubt = sum(row.is_noisy() for row in compared)
    failures = {
        f"FAILED {row.shape.name}, {server}: {reason}"
        for row in rows
        for server, reason in row.failures.items()
    }
    lines = [f"{met} of {len(compared)} goals met", *sorted(failures)]
    if in_doubt:
        lines[0] += f", {in_doubt} more in doubt (?): the machine was busy, measure them again"
    return "\n".join(lines)


def _cells(row: Row, *, with_pure: bool) -> list[str]:
    cells = [
        row.name,
        _figure(row, OURS),
        _figure(row, THEIRS),
        _ratio(row.ratio()),
        str(row.goal),
        {True: "yes", False: "NO", None: "-"}[row.is_met()] + ("?" if row.is_noisy() else ""),
        f"{row.others_share():.0%}",
    ]
    return [*cells, _figure(row, PURE), _ratio(row.ratio(PURE))] if with_pure else cells


def _figure(row: Row, server: str) -> str:
    if server in row.failures:
        return "FAILED"
    value = row.value(server)
    if value is None:
        return "-"
    if row.goal.unit != "msgs/s":
        return f"{value:.0f} {row.goal.unit}"
    return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.0f} k/s"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _identity(varz: dict[str, Any]) -> str:
    """Return a server's name, version, and whether its hot path is compiled."""
    penstock = varz.get("penstock")
    if penstock is None:
        return f"nats-server {varz['version']}" if "version" in varz else "version unknown"
    compiled = "compiled" if penstock["compiled"] else "pure Python"
    return f"penstock {metadata.version('penstock')}, {compiled}"
