"""Sides beside each other: which round counts, what the ratio is, and whether it is enough."""

from __future__ import annotations

import pytest

from penstock.bench.report.ratios import (
    COMPARED,
    OTHERS,
    OURS,
    THEIRS,
    Figures,
    Goal,
    RatioRow,
    both,
    summary,
    table,
)

RATE = Goal("rate", 1.5, "/s")
TIME = Goal("p50us", 1.0, "µs", "p50", counts="median")
MEMORY = Goal("resident_mb", 45, "MB", absolute=True, counts="last")


def row(goal: Goal, ours: list[float], theirs: list[float], **more: float) -> RatioRow:
    def rounds(values: list[float]) -> list[Figures]:
        return [{goal.figure: value, **more} for value in values]

    return RatioRow("work", goal, {OURS: rounds(ours), THEIRS: rounds(theirs)})


@pytest.mark.parametrize(
    ("one", "value"),
    [
        (row(RATE, [100, 300, 200], []), 300),
        (row(TIME, [9, 5, 7], []), 7),
        (row(MEMORY, [60, 50, 40], []), 40),
        (row(Goal("p50us", 1.0, "µs"), [9, 5, 7], []), 5),
        (row(RATE, [], []), None),
    ],
)
def test_the_goal_says_which_round_counts(one: RatioRow, value: float | None) -> None:
    assert one.value(OURS) == value


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (row(RATE, [150], [100]), True),
        (row(RATE, [149], [100]), False),
        (row(TIME, [100], [100]), True),
        (row(TIME, [101], [100]), False),
        (row(MEMORY, [45], []), True),
        (row(RATE, [150], []), None),
        (RatioRow("work", RATE, failures={OURS: "lost 1"}), False),
    ],
)
def test_a_goal_is_met_or_missed_or_unknown(one: RatioRow, met: bool | None) -> None:
    assert one.is_met() is met


def test_a_verdict_on_speed_is_in_doubt_on_a_busy_machine() -> None:
    busy = row(RATE, [300], [100], others=0.2)
    memory = row(MEMORY, [40], [50], others=0.2)

    assert (busy.is_noisy(), memory.is_noisy()) == (True, False)
    assert summary([busy, memory]).startswith("1 of 2 goals met, 1 more in doubt (?)")


def test_the_table_has_both_sides_and_the_verdict() -> None:
    one = row(RATE, [3000], [1000], others=0.05, cpu_us=1.25)

    assert table("shape", [*COMPARED, OTHERS, ("CPU µs", both("cpu_us", 2))], [one]) == (
        "| shape | ours    | theirs  | ratio | goal   | met | others | CPU µs      |\n"
        "| ----- | ------- | ------- | ----- | ------ | --- | ------ | ----------- |\n"
        "| work  | 3,000/s | 1,000/s | 3.00x | ≥ 1.5x | yes | 5%     | 1.25 / 1.25 |"
    )


def test_a_failure_stands_in_the_table_and_below_it() -> None:
    one = row(TIME, [1.0], [1.0])
    one.failures[THEIRS] = "3 messages lost"

    assert "| work: p50 | 1 µs | FAILED | -     |" in table("shape", COMPARED, [one])
    assert summary([one]) == "0 of 0 goals met\nFAILED work, theirs: 3 messages lost"


@pytest.mark.parametrize(
    ("goal", "value", "text"),
    [
        (Goal("x", 1), 2_500_000, "2.50 M/s"),
        (Goal("x", 1), 25_000, "25 k/s"),
        (RATE, 25_000, "25,000/s"),
        (TIME, 12.4, "12 µs"),
        (MEMORY, 38.6, "39 MB"),
    ],
)
def test_a_figure_has_its_unit(goal: Goal, value: float, text: str) -> None:
    assert goal.spell(value) == text
