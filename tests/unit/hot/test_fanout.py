"""What a peer is owed, and who gets a message that came alone: in both twins."""

from __future__ import annotations

import gc
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.compiled import compiled_twin

from penstock.hot import fanout
from penstock.hot.fanout import SHARED_BYTES
from penstock.hot.wire import PUB, Op


@pytest.fixture(params=["reference", "compiled"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return fanout if request.param == "reference" else compiled_twin()


def message(payload: bytes, *, reply: bytes = b"", header_bytes: int = 0) -> Op:
    return (PUB, b"a.b", reply, header_bytes, len(payload), payload + b"\r\n")


def figures(outlet: Any) -> tuple[int, int, int]:
    return outlet.outbox_bytes, outlet.out_messages, outlet.out_bytes


def test_what_is_owed_is_counted_and_the_outlet_is_dirty_once(twin: ModuleType) -> None:
    dirty: list[Any] = []
    outlet = twin.Outlet(100, dirty, [])
    assert (outlet.outbox, figures(outlet), outlet.is_dirty) == ([], (0, 0, 0), False)

    outlet.enqueue(b"PONG\r\n", 6)
    outlet.enqueue((b"1", [b"x"]), 20, 2, 7)
    outlet.mark_dirty()

    assert outlet.outbox == [b"PONG\r\n", (b"1", [b"x"])]
    assert figures(outlet) == (26, 2, 7)
    assert dirty == [outlet]
    assert outlet.is_dirty is True


def test_an_outlet_with_too_much_waiting_is_congested_unless_it_is_stuck(twin: ModuleType) -> None:
    congested: list[Any] = []
    outlet = twin.Outlet(10, [], congested)

    outlet.enqueue(b"", 10)
    assert congested == []
    outlet.enqueue(b"", 1)
    assert congested == [outlet]
    outlet.is_stuck = True
    outlet.enqueue(b"", 1)
    assert congested == [outlet]


@pytest.mark.parametrize("arguments", [(), (b"",), (b"", "1"), (b"", 1, 2, 3, 4)])
def test_what_is_owed_has_a_size(twin: ModuleType, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        twin.Outlet(10, [], []).enqueue(*arguments)


def test_those_who_share_a_sid_share_what_they_are_sent(twin: ModuleType) -> None:
    one, two, three = (twin.Outlet(100, [], []) for _ in range(3))
    group = tuple(twin.Receiver(outlet, b"1") for outlet in (one, two))
    other = twin.Receiver(three, b"2")

    twin.fan_out(((b"1", group),), (other,), (), message(b"hi", reply=b"r"), lambda: 0.0)

    assert one.outbox == [b"MSG a.b 1 r 2\r\nhi\r\n"]
    assert one.outbox[0] is two.outbox[0]
    assert three.outbox == [b"MSG a.b 2 r 2\r\nhi\r\n"]
    assert [figures(outlet) for outlet in (one, two, three)] == [(19, 1, 2)] * 3
    assert [receiver.delivered for receiver in (*group, other)] == [1, 1, 1]


def test_a_long_payload_is_not_copied(twin: ModuleType) -> None:
    outlet = twin.Outlet(100, [], [])
    publish = message(b"x" * SHARED_BYTES, header_bytes=7)

    twin.fan_out((), (twin.Receiver(outlet, b"1"),), (), publish, lambda: 0.0)

    line = b"HMSG a.b 1 7 %d\r\n" % SHARED_BYTES
    assert outlet.outbox == [line, publish[5]]
    assert outlet.outbox[1] is publish[5]
    assert figures(outlet) == (len(line) + SHARED_BYTES + 2, 1, SHARED_BYTES)


def test_one_member_of_each_queue_is_chosen(twin: ModuleType) -> None:
    outlet = twin.Outlet(1000, [], [])
    queues = tuple(
        tuple(twin.Receiver(outlet, b"%b%d" % (name, index)) for index in range(3))
        for name in (b"blue", b"green")
    )
    dice = iter([0.0, 0.99])

    twin.fan_out((), (), queues, message(b""), lambda: next(dice))

    assert outlet.outbox == [b"MSG a.b blue0 0\r\n\r\n", b"MSG a.b green2 0\r\n\r\n"]
    assert [[each.delivered for each in members] for members in queues] == [[1, 0, 0], [0, 0, 1]]


def test_dice_that_fail_are_heard_of(twin: ModuleType) -> None:
    queue = (twin.Receiver(twin.Outlet(1000, [], []), b"1"),)

    with pytest.raises(ZeroDivisionError):
        twin.fan_out((), (), (queue,), message(b""), lambda: 1 / 0)


def test_a_run_is_not_one_message(twin: ModuleType) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        twin.fan_out((), (), (), (PUB, b"a", b"", 0, 1, b"x\r\ny\r\n"), lambda: 0.0)


def alternating(twin: ModuleType) -> tuple[dict[bytes, Any], Any]:
    """Return routes of two subjects, `a.b` with a queue and `c` without, and whom they lead to."""
    outlet = twin.Outlet(1000, [], [])
    receivers = [twin.Receiver(outlet, sid) for sid in (b"1", b"2")]
    queued = ((), (receivers[0],), ((receivers[1],),))
    routes = {
        b"a.b": SimpleNamespace(ways=queued),
        b"c": SimpleNamespace(ways=((), (receivers[0],), ())),
        b"careful": SimpleNamespace(ways=None),
    }
    return routes, outlet


def on(subject: bytes, count: int = 1) -> Op:
    return (PUB, subject, b"", 0, 1, b"x\r\n" * count)


@pytest.mark.parametrize(
    ("publishes", "delivered"),
    [
        ([], 0),
        ([on(b"c")], 1),
        ([on(b"a.b"), on(b"a.b"), on(b"c"), on(b"a.b")], 4),
        ([on(b"a.b"), on(b"c"), on(b"c")], 1),
        ([on(b"c"), on(b"a.b", 2)], 1),
        ([on(b"c"), on(b"unknown"), on(b"c")], 1),
        ([on(b"a.b"), on(b"careful")], 1),
    ],
)
def test_messages_go_one_by_one_where_that_serves_them_best(
    twin: ModuleType, publishes: list[Op], delivered: int
) -> None:
    routes, outlet = alternating(twin)

    assert twin.fan_out_each(publishes, routes, lambda: 0.0) == delivered

    expected = []
    for _, subject, *_ in publishes[:delivered]:
        sids = (b"1", b"2") if subject == b"a.b" else (b"1",)
        expected += [b"MSG %b %b 1\r\nx\r\n" % (subject, sid) for sid in sids]
    assert outlet.outbox == expected


def test_an_error_on_the_way_is_heard_of(twin: ModuleType) -> None:
    routes, _ = alternating(twin)

    with pytest.raises(ZeroDivisionError):
        twin.fan_out_each([on(b"a.b")], routes, lambda: 1 / 0)
    with pytest.raises(ValueError, match="do not fit"):
        twin.fan_out_each([(PUB, b"c", b"", 2, 1, b"x\r\n")], routes, lambda: 0.0)
    with pytest.raises(AttributeError):
        twin.fan_out_each([on(b"c")], {b"c": 7}, lambda: 0.0)


def test_sessions_and_subscriptions_can_be_made_of_them_and_go_when_unused(
    twin: ModuleType,
) -> None:
    class Session(twin.Outlet):  # type: ignore[misc, name-defined]
        __slots__ = ("__weakref__", "subscription")

    class Subscription(twin.Receiver):  # type: ignore[misc, name-defined]
        __slots__ = ("subject",)

    session = Session(10, [], [])
    session.subscription = Subscription(session, b"1")
    session.mark_dirty()
    gone = weakref.ref(session)
    del session
    gc.collect()

    assert gone() is None
