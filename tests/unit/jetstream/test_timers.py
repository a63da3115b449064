"""Deadlines without a clock."""

from __future__ import annotations

import logging

import pytest

from penstock.jetstream.timers import Timers


def test_there_is_no_next_deadline_without_a_timer() -> None:
    assert Timers().next_deadline_ns() is None


def test_the_next_deadline_is_the_earliest_that_is_not_cancelled() -> None:
    timers = Timers()
    timers.at(7, print)
    first = timers.at(5, print)
    assert 5 == timers.next_deadline_ns()

    first.cancel()

    assert (7, False) == (timers.next_deadline_ns(), first.is_armed)


def test_what_is_due_is_done_in_order_and_told_the_time() -> None:
    timers, done = Timers(), []
    timers.at(9, lambda now_ns: done.append(("c", now_ns)))
    timers.at(5, lambda now_ns: done.append(("a", now_ns)))
    timer = timers.at(6, lambda now_ns: done.append(("b", now_ns)))

    timers.run(8)

    assert [("a", 8), ("b", 8)] == done
    assert (9, False) == (timers.next_deadline_ns(), timer.is_armed)


def test_one_that_fails_is_logged_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    timers, done = Timers(), []

    def fail(now_ns: int) -> None:
        raise OSError("no luck")

    timers.at(1, fail)
    timers.at(2, done.append)
    with caplog.at_level(logging.ERROR, "penstock"):
        timers.run(3)

    assert [3] == done
    assert "no luck" in caplog.text


def test_what_is_due_waits_when_the_time_is_over_and_goes_first_then() -> None:
    timers, done = Timers(), []
    for deadline_ns in range(1, 6):
        timers.at(deadline_ns, lambda now_ns, due_ns=deadline_ns: done.append(due_ns))

    timers.run(9, lambda: len(done) == 2)

    assert ([1, 2], 3) == (done, timers.next_deadline_ns())
    timers.at(2, lambda now_ns: done.append(2))
    timers.run(9)
    assert [1, 2, 2, 3, 4, 5] == done
