"""The bytes that a consumer may deliver in a second."""

from __future__ import annotations

from penstock.hot.wire import Op
from penstock.jetstream.consumers.ratelimit import DeliveryRate
from penstock.protocol.times import SECOND_NS


def message(size: int) -> Op:
    return (b"PUB", b"", b"", b"", size, b"")  # type: ignore[return-value]


def test_as_many_go_as_the_bucket_holds_and_the_rest_later() -> None:
    limit = DeliveryRate(8 * 100, burst_bytes=100)

    assert 2 == len(limit.admit([message(50)] * 4, now_ns=0))
    assert 0.49 * SECOND_NS < limit.due_ns < 0.51 * SECOND_NS
    assert 0 == len(limit.admit([message(50)] * 2, now_ns=SECOND_NS // 4))
    assert 1 == len(limit.admit([message(50)] * 2, now_ns=limit.due_ns))


def test_a_message_larger_than_the_bucket_goes_when_it_is_full() -> None:
    limit = DeliveryRate(8 * 100, burst_bytes=100)

    assert 1 == len(limit.admit([message(5000)] * 2, now_ns=0))
    assert 0 == len(limit.admit([message(5000)], now_ns=SECOND_NS // 2))
    assert 1 == len(limit.admit([message(5000)], now_ns=SECOND_NS + 1))


def test_the_wait_ends_when_it_is_time_and_not_before() -> None:
    limit = DeliveryRate(8, burst_bytes=1)
    limit.admit([message(1)] * 2, now_ns=0)
    due_ns = limit.due_ns

    limit.release(due_ns - 1)
    assert due_ns == limit.due_ns
    limit.release(due_ns)
    assert 0 == limit.due_ns


def test_the_smallest_rate_still_delivers() -> None:
    limit = DeliveryRate(1, burst_bytes=10)

    assert 1 == len(limit.admit([message(10)] * 2, now_ns=0))
    assert limit.due_ns > 0
