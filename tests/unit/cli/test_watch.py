"""Figures that change."""

from __future__ import annotations

from penstock.cli.watch import Rate, fitting


def test_a_rate_is_that_of_the_time_between_two_looks() -> None:
    rate = Rate()

    assert rate.per_second(100, 1.0) == 0.0
    assert rate.per_second(300, 3.0) == 100.0
    assert rate.per_second(300, 3.0) == 0.0


def test_a_screen_is_cut_to_what_can_be_redrawn() -> None:
    assert fitting("abcdef\ng\nh\ni", (4, 3)) == ["abcd", "g"]
