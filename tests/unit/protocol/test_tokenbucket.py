"""A token bucket, by a clock that only the test moves."""

from __future__ import annotations

import pytest

from penstock.protocol.tokenbucket import TokenBucket


def test_what_fits_into_the_bucket_goes_at_once() -> None:
    bucket = TokenBucket(10.0, burst=3)

    assert [bucket.take(1, 0.0) for _ in range(5)] == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2])


def test_a_bucket_fills_as_time_passes_and_no_further_than_full() -> None:
    bucket = TokenBucket(10.0, burst=3)
    for _ in range(3):
        bucket.take(1, 0.0)

    assert bucket.wait(1, 0.05) == pytest.approx(0.05)
    assert bucket.wait(3, 0.3) == pytest.approx(0.0)
    assert bucket.wait(4, 1000.0) == pytest.approx(0.1)


def test_asking_takes_nothing() -> None:
    bucket = TokenBucket(1.0, burst=1)

    assert [bucket.wait(1, 0.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert (bucket.take(1, 0.0), bucket.wait(1, 0.0)) == (0.0, 1.0)


def test_over_a_long_time_the_rate_is_kept() -> None:
    bucket, now = TokenBucket(50.0, burst=5), 0.0
    for _ in range(1000):
        now += bucket.take(1, now)

    assert now == pytest.approx((1000 - 5) / 50.0)
