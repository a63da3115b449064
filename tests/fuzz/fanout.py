"""Messages and receivers worth trying, and what a twin of `fanout` makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

from penstock.hot.fanout import SHARED_BYTES
from penstock.hot.wire import PUB, Op

SIDS = [b"", b"1", b"1", b"22", b"a%b"]
SIZES = [0, 1, 40, SHARED_BYTES - 1, SHARED_BYTES, SHARED_BYTES + 1]


class Example(NamedTuple):
    """Sids by outlet for each way of delivery, and the messages that go there."""

    congested_bytes: int
    outlets: int
    shared: list[tuple[bytes, list[int]]]
    single: list[tuple[bytes, int]]
    queues: list[list[tuple[bytes, int]]]
    publishes: list[Op]
    dice: list[float]


def examples(seed: int) -> Iterator[Example]:
    """Yield examples without end."""
    rng = random.Random(seed)
    while True:
        outlets = rng.randrange(1, 5)

        def receivers(fewest: int, outlets: int = outlets) -> list[tuple[bytes, int]]:
            count = rng.randrange(fewest, 4)
            return [(rng.choice(SIDS), rng.randrange(outlets)) for _ in range(count)]

        yield Example(
            congested_bytes=rng.choice([0, 100, 10_000]),
            outlets=outlets,
            shared=[
                (rng.choice(SIDS), [outlet for _, outlet in receivers(1)])
                for _ in range(rng.randrange(3))
            ],
            single=receivers(0),
            queues=[receivers(1) for _ in range(rng.randrange(3))],
            publishes=[_publish(rng) for _ in range(rng.randrange(4))],
            dice=[rng.random() for _ in range(24)],
        )


def _publish(rng: random.Random) -> Op:
    size = rng.choice(SIZES)
    header_bytes = rng.choice([0, 0, size, size // 2])
    data = rng.randbytes(size) + b"\r\n"
    if rng.random() < 0.1:
        size += rng.choice([-1, 1, -size, 10**6])
    elif rng.random() < 0.1:
        data *= 2
    return (
        PUB,
        rng.choice([b"a", b"a", b"a.b", b"b", b"c"]),
        rng.choice([b"", b"r"]),
        header_bytes,
        size,
        data,
    )


def outcomes(twin: ModuleType, example: Example) -> list[object]:
    """Return everything that is seen of an example afterwards, errors included."""
    dirty: list[object] = []
    congested: list[object] = []
    outlets = [
        twin.Outlet(example.congested_bytes, dirty, congested) for _ in range(example.outlets)
    ]
    shared = tuple(
        (sid, tuple(twin.Receiver(outlets[index], sid) for index in indexes))
        for sid, indexes in example.shared
    )
    single = tuple(twin.Receiver(outlets[index], sid) for sid, index in example.single)
    queues = tuple(
        tuple(twin.Receiver(outlets[index], sid) for sid, index in members)
        for members in example.queues
    )
    dice = iter(example.dice)
    errors: list[object] = []
    for publish in example.publishes:
        try:
            twin.fan_out(shared, single, queues, publish, lambda: next(dice))
        except ValueError as error:
            errors.append(str(error))
    routes = {
        b"a": SimpleNamespace(ways=(shared, single, queues)),
        b"a.b": SimpleNamespace(ways=(shared, single, ())),
        b"b": SimpleNamespace(ways=None),
    }
    try:
        errors.append(twin.fan_out_each(example.publishes, routes, lambda: next(dice)))
    except ValueError as error:
        errors.append(str(error))
    groups = [receivers for _, receivers in shared] + [single, *queues]
    return [
        errors,
        [outlets.index(outlet) for outlet in dirty],
        [outlets.index(outlet) for outlet in congested],
        [[receiver.delivered for receiver in group] for group in groups],
        [
            (each.outbox, each.outbox_bytes, each.out_messages, each.out_bytes, each.is_dirty)
            for each in outlets
        ],
    ]
