"""How long failures are waited out."""

from __future__ import annotations

import pytest

from penstock.errors import (
    ApiError,
    ClientError,
    ConnectFailed,
    JetStreamError,
    PenstockError,
    PermissionDenied,
)
from penstock.spark.patience import Patience, persistently


class Clock:
    """Time that goes by only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time go by."""
        self.now_s += seconds


def patience(clock: Clock, limit_s: float) -> Patience:
    """Return patience on a clock of its own."""
    return Patience(limit_s, clock=clock, sleep=clock.sleep)


def attempts(limit_s: float, error: PenstockError, succeed_at_s: float) -> tuple[int, float]:
    """Return how many attempts were made and when the last was, failing up to a time."""
    clock, made = Clock(), 0

    def attempt() -> None:
        nonlocal made
        made += 1
        if clock.now_s < succeed_at_s:
            raise error

    persistently(patience(clock, limit_s), attempt)
    return made, clock.now_s


@pytest.mark.parametrize(
    "error", [ConnectFailed("away"), JetStreamError(ApiError(503, 10008, "no leader"))]
)
def test_an_outage_is_ridden_out_and_not_by_many_attempts(error: PenstockError) -> None:
    made, at_s = attempts(120, error, 100)

    assert 100 <= at_s <= 105
    assert made < 50


def test_an_outage_that_lasts_too_long_is_an_error() -> None:
    with pytest.raises(ConnectFailed, match="away"):
        attempts(120, ConnectFailed("away"), 121)


def test_the_time_counts_from_the_first_failure_behind_a_step_forward() -> None:
    clock = Clock()
    tried = patience(clock, 10)
    for _ in range(5):
        clock.sleep(9)
        tried.wait(ConnectFailed("away"))
        tried.succeeded()

    assert clock.now_s > 45


@pytest.mark.parametrize(
    "error",
    [
        PermissionDenied("no"),
        ClientError("no such stream"),
        JetStreamError(ApiError(400, 10026, "maximum consumers limit reached")),
    ],
)
def test_what_will_not_pass_is_raised_at_once(error: PenstockError) -> None:
    clock = Clock()
    with pytest.raises(type(error)):
        patience(clock, 120).wait(error)

    assert 0 == clock.now_s
