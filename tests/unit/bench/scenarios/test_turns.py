"""Sides take turns: one round after the other, and a side that failed sits out."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.bench.report.ratios import Figures, Goal, RatioRow
from penstock.bench.scenarios.turns import in_turns, take_turns
from penstock.errors import PenstockError


@dataclass(frozen=True)
class Player:
    name: str


OURS, THEIRS = Player("ours"), Player("theirs")


def test_every_side_has_its_turn_in_every_round() -> None:
    assert list(in_turns("ab", 2)) == ["a", "b", "a", "b"]


def test_rows_note_the_figures_and_progress_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [RatioRow("work", Goal("rate", 1, "/s")), RatioRow("work", Goal("resident_mb", 1, "MB"))]
    figures = iter(range(10, 50, 10))

    def measure(side: Player) -> Figures:
        return {"rate": next(figures), "resident_mb": 7, "cpu_us": 1.5, "others": 0.25}

    take_turns(rows, [OURS, THEIRS], 2, measure)

    assert [row.value("ours") for row in rows] == [30, 7]
    assert [row.value("theirs") for row in rows] == [40, 7]
    captured = capsys.readouterr()
    assert "    theirs: 40/s, 7 MB, 1.5 µs CPU each (others 25%)\n" in captured.err
    assert captured.out == ""


def test_a_side_that_failed_is_not_asked_again() -> None:
    asked = []

    def measure(side: Player) -> Figures:
        asked.append(side)
        if side == OURS and len(asked) > 1:
            raise PenstockError("1 message lost")
        return {"rate": 1}

    take_turns(rows := [RatioRow("work", Goal("rate", 1, "/s"))], [OURS, THEIRS], 3, measure)

    assert asked == [OURS, THEIRS, OURS, THEIRS, THEIRS]
    assert rows[0].failures == {"ours": "1 message lost"}
    assert rows[0].value("ours") is None
