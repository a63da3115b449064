"""What was measured, as a table for people and as JSON for programs."""

import os
import platform
import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.shapes import Goal, Shape

OURS, THEIRS, PURE = "ours", "theirs", "pure"


@dataclass
class Row:
    """One line of the table: a figure of a shape, from every server and round."""

    shape: Shape
    goal: Goal
    rounds: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.shape.name}: {self.goal.label}" if self.goal.label else self.shape.name

    def best(self, server: str) -> float | None:
        """Return the best round; of memory the last, for it grows until it has settled."""
        values = self.rounds.get(server)
        if not values or server in self.failures:
            return None
        if self.goal.unit == "MB":
            return values[-1]
        return max(values) if self.goal.more_is_better else min(values)

    def ratio(self, server: str = OURS) -> float | None:
        """Return the figure of `server` divided by nats-server's."""
        value, theirs = self.best(server), self.best(THEIRS)
        return value / theirs if value and theirs else None

    def is_met(self) -> bool | None:
        """Tell whether our figure keeps the goal; None if it could not be compared."""
        value = self.best(OURS) if self.goal.absolute else self.ratio()
        if value is None:
            return False if OURS in self.failures else None
        return value >= self.goal.bound if self.goal.more_is_better else value <= self.goal.bound

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON can hold it."""
        return {
            "shape": self.name,
            "unit": self.goal.unit,
            "best": {server: self.best(server) for server in self.rounds},
            "ratio": self.ratio(),
            "goal": str(self.goal),
            "met": self.is_met(),
            "rounds": self.rounds,
            "failures": self.failures,
        }


def header(programs: dict[str, tuple[str, ...]], varz: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return what the figures depend on: the machine, and which servers ran."""
    machine = (
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )
    servers = {
        name: f"{_identity(varz[name])}, `{shlex.join([Path(command[0]).name, *command[1:]])}`"
        for name, command in programs.items()
    }
    return {"date": time.strftime("%Y-%m-%d %H:%M %Z"), "machine": machine, **servers}


def table(rows: Iterable[Row], *, with_pure: bool) -> str:
    """Return the rows as a Markdown table whose columns line up."""
    titles = ["shape", "ours", "theirs", "ratio", "goal", "met"]
    lines = [_cells(row, with_pure=with_pure) for row in rows]
    if with_pure:
        titles += ["pure", "pure ratio"]
    widths = [max(map(len, column)) for column in zip(titles, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(_line(cells, widths) for cells in (titles, rule, *lines))


def summary(rows: Iterable[Row]) -> str:
    """Return how many goals were met, and every failure in full."""
    rows = list(rows)
    compared = [row for row in rows if row.is_met() is not None]
    met = sum(row.is_met() is True for row in compared)
    failures = {
        f"FAILED {row.shape.name}, {server}: {reason}"
        for row in rows
        for server, reason in row.failures.items()
    }
    return "\n".join([f"{met} of {len(compared)} goals met", *sorted(failures)])


def _cells(row: Row, *, with_pure: bool) -> list[str]:
    cells = [
        row.name,
        _figure(row, OURS),
        _figure(row, THEIRS),
        _ratio(row.ratio()),
        str(row.goal),
        {True: "yes", False: "NO", None: "-"}[row.is_met()],
    ]
    return [*cells, _figure(row, PURE), _ratio(row.ratio(PURE))] if with_pure else cells


def _figure(row: Row, server: str) -> str:
    if server in row.failures:
        return "FAILED"
    value = row.best(server)
    if value is None:
        return "-"
    if row.goal.unit != "msgs/s":
        return f"{value:.0f} {row.goal.unit}"
    return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.0f} k/s"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _line(cells: list[str], widths: list[int]) -> str:
    return "| " + " | ".join(map(str.ljust, cells, widths)) + " |"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _identity(varz: dict[str, Any]) -> str:
    """Return a server's name, version, and whether its hot path is compiled."""
    penstock = varz.get("penstock")
    if penstock is None:
        return f"nats-server {varz['version']}" if "version" in varz else "version unknown"
    compiled = "compiled" if penstock["compiled"] else "pure Python"
    return f"penstock {metadata.version('penstock')}, {compiled}"
