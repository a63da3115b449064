"""A survey is exact, whatever comes and goes while it looks."""

from __future__ import annotations

import random

import pytest

from penstock.jetstream.store import subjectindex
from penstock.jetstream.store.memory import open_memory_store
from penstock.jetstream.store.store import Store
from penstock.jetstream.store.values import Filters, StoreLimits
from penstock.protocol import subjects

FILTERS: list[Filters] = [(b"a.>",), (b"*.3",), (b"a.*", b"b.1"), (b">",), ()]


def append(store: Store, names: list[bytes]) -> None:
    store.append([(name, b"", b"x", 1) for name in names])


def expected(store: Store, filters: Filters) -> tuple[int, list[int]]:
    last: dict[bytes, int] = {}
    count = 0
    for sequence in range(store.first_sequence, store.last_sequence + 1):
        message = store.get(sequence)
        if message is not None and (
            not filters or any(subjects.matches(each, message[2]) for each in filters)
        ):
            last[message[2]] = sequence
            count += 1
    return count, sorted(last.values())


def change(store: Store, chance: random.Random) -> None:
    """Do one of the things that happen to a stream."""
    names = [b"%c.%d" % (*chance.choices(b"abc"), chance.randrange(12)) for _ in range(5)]
    act = chance.randrange(5)
    if act < 2:
        append(store, names)
    elif act == 2:
        store.remove(chance.sample(range(1, store.last_sequence + 1), 5))
    elif act == 3:
        store.purge(names[0])
    else:
        store.purge(before=store.first_sequence + 3)
        # Some last sequences are out of date now, and are put right when they are asked for.
        store.last(names[0])


@pytest.mark.parametrize("limit", [0, 1, 3])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_what_changes_meanwhile_is_counted(
    monkeypatch: pytest.MonkeyPatch, filters: Filters, limit: int
) -> None:
    monkeypatch.setattr(subjectindex, "RUN", 8)
    monkeypatch.setattr(subjectindex, "PORTION", 4)
    for seed in range(20):
        chance = random.Random(seed)
        store = open_memory_store(limits=StoreLimits(messages_per_subject_max=limit))
        append(store, [b"%c.%d" % (each % 3 + 97, each % 12) for each in range(200)])
        with store.survey(filters) as steps:
            for _ in steps:
                change(store, chance)

            count, last = expected(store, filters)
            assert sorted(store.last_sequences(filters)) == last
            assert store.count(0, filters) == count
            change(store, chance)
            assert store.count(0, filters) == expected(store, filters)[0]


@pytest.mark.parametrize("limit", [1, 2])
def test_a_survey_that_is_overtaken_by_a_new_table_says_nothing(limit: int) -> None:
    store = open_memory_store(limits=StoreLimits(messages_per_subject_max=2))
    append(store, [b"a.%d" % (each // 2) for each in range(10_000)])
    with store.survey((b"a.*",)) as steps:
        for step, _ in enumerate(steps):
            if step == 2 and limit == 1:
                store.limits = StoreLimits(messages_per_subject_max=1)
            elif step == 2:
                store.purge()

        assert store.count(0, (b"a.*",)) == (5000 if limit == 1 else 0)
        assert len(store.last_sequences((b"a.*",))) == (5000 if limit == 1 else 0)
