"""Sides that take turns at the same work: their figures, the ratio, and the goal for ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, Literal, TypeAlias

from penstock.bench.report.machine import OTHERS_SHARE_MAX
from penstock.protocol.tables import markdown

OURS, THEIRS = "ours", "theirs"

Figures: TypeAlias = Mapping[str, float]
"""The figures of one side in one round, by name; `others`: the share of other processes."""

Column: TypeAlias = tuple[str, Callable[["RatioRow"], str]]
"""A title, and the cell of a row."""

VERDICTS = {True: "yes", False: "NO", None: "-"}


@dataclass(frozen=True)
class Goal:
    """One figure of a work, and its bound."""

    figure: str
    bound: float
    """The bound of our figure divided by theirs, or of our figure itself if `absolute`."""
    unit: Literal["msgs/s", "/s", "µs", "MB", "B"] = "msgs/s"
    """`msgs/s` is printed in thousands and millions, `/s` in full."""
    label: str = ""
    absolute: bool = False
    counts: Literal["best", "median", "last"] = "best"
    """The round that counts."""

    @property
    def more_is_better(self) -> bool:
        """Whether higher is better: true for rates, false for times and memory."""
        return self.unit.endswith("/s")

    def __str__(self) -> str:
        sign = "≥" if self.more_is_better else "≤"
        return f"{sign} {self.bound:g}" + (f" {self.unit}" if self.absolute else "x")

    def spell(self, value: float) -> str:
        """Return a value with its unit."""
        if self.unit == "/s":
            return f"{value:,.0f}/s"
        if self.unit != "msgs/s":
            return f"{value:.0f} {self.unit}"
        return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.0f} k/s"


@dataclass
class RatioRow:
    """One line of a table: the figures of a work, from every side and round."""

    name: str
    goal: Goal
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name, with the label of a figure that is not the only one."""
        return f"{self.name}: {self.goal.label}" if self.goal.label else self.name

    def value(self, side: str) -> float | None:
        """Return the figure of a side that counts; None without one, or after a failure."""
        values = self._all(side, self.goal.figure)
        if not values:
            return None
        if self.goal.counts == "best":
            return max(values) if self.goal.more_is_better else min(values)
        return median(values) if self.goal.counts == "median" else values[-1]

    def least(self, side: str, figure: str) -> float:
        """Return the lowest of another figure, which no goal speaks of; 0 without one."""
        return min(self._all(side, figure), default=0.0)

    def ratio(self, side: str = OURS) -> float | None:
        """Return the figure of a side divided by theirs."""
        value, theirs = self.value(side), self.value(THEIRS)
        return value / theirs if value and theirs else None

    def is_met(self) -> bool | None:
        """Tell whether our figure meets the goal; None if it could not be compared."""
        value = self.value(OURS) if self.goal.absolute else self.ratio()
        if value is None:
            return False if OURS in self.failures else None
        return value >= self.goal.bound if self.goal.more_is_better else value <= self.goal.bound

    def others_share(self) -> float:
        """Return the average share of the machine that other processes took."""
        shares = [one.get("others", 0.0) for rounds in self.rounds.values() for one in rounds]
        return mean(shares) if shares else 0.0

    def is_noisy(self) -> bool:
        """Tell whether a comparison of speed is in doubt. Memory does not depend on other load."""
        return self.goal.unit not in ("MB", "B") and self.others_share() > OTHERS_SHARE_MAX

    def as_json(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "name": self.title,
            "unit": self.goal.unit,
            "value": {side: self.value(side) for side in self.rounds},
            "ratio": self.ratio(),
            "goal": str(self.goal),
            "met": self.is_met(),
            "noisy": self.is_noisy(),
            "others_share": self.others_share(),
            "rounds": self.rounds,
            "failures": self.failures,
        }

    def _all(self, side: str, figure: str) -> list[float]:
        rounds = [] if side in self.failures else self.rounds.get(side, [])
        return [one[figure] for one in rounds]


def value_of(side: str) -> Callable[[RatioRow], str]:
    """Return the cell with the figure of a side."""

    def cell(row: RatioRow) -> str:
        value = row.value(side)
        if side in row.failures:
            return "FAILED"
        return "-" if value is None else row.goal.spell(value)

    return cell


def ratio_of(side: str) -> Callable[[RatioRow], str]:
    """Return the cell with the figure of a side divided by theirs."""

    def cell(row: RatioRow) -> str:
        ratio = row.ratio(side)
        return "-" if ratio is None else f"{ratio:.2f}x"

    return cell


def both(figure: str, digits: int) -> Callable[[RatioRow], str]:
    """Return the cell with another figure of both sides."""
    return lambda row: " / ".join(
        f"{row.least(side, figure):.{digits}f}" for side in (OURS, THEIRS)
    )


def verdict(row: RatioRow) -> str:
    """Return whether the goal is met; a question mark where the machine was busy."""
    return VERDICTS[row.is_met()] + ("?" if row.is_noisy() else "")


COMPARED: Sequence[Column] = (
    (OURS, value_of(OURS)),
    (THEIRS, value_of(THEIRS)),
    ("ratio", ratio_of(OURS)),
    ("goal", lambda row: str(row.goal)),
    ("met", verdict),
)
OTHERS: Column = ("others", lambda row: f"{row.others_share():.0%}")


def table(first: str, columns: Sequence[Column], rows: Iterable[RatioRow]) -> str:
    """Return the rows as Markdown; `first` is the title of their names."""
    titles = [first, *(title for title, _ in columns)]
    lines = [[row.title, *(cell(row) for _, cell in columns)] for row in rows]
    return markdown(titles, lines, left=len(titles))


def summary(rows: Sequence[RatioRow]) -> str:
    """Return the number of goals met, and every failure in full."""
    compared = [row for row in rows if row.is_met() is not None]
    met = sum(row.is_met() is True and not row.is_noisy() for row in compared)
    in_doubt = sum(row.is_noisy() for row in compared)
    line = f"{met} of {len(compared)} goals met"
    if in_doubt:
        line += f", {in_doubt} more in doubt (?): the machine was busy, measure them again"
    return "\n".join([line, *failures(rows)])


def failures(rows: Iterable[RatioRow]) -> list[str]:
    """Return every failure, once."""
    found = {
        f"FAILED {row.name}, {side}: {reason}"
        for row in rows
        for side, reason in row.failures.items()
    }
    return sorted(found)
