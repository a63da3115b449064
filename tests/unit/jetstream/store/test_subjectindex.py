"""Subjects are found by patterns, whatever came and went in between."""

from __future__ import annotations

import random
from itertools import product

import pytest
from tests.work import work_of

from penstock.jetstream.store import subjectindex
from penstock.jetstream.store.subjectindex import SubjectIndex, compiled
from penstock.protocol import subjects

TOKENS = (b"a", b"b", b"a*", b"*", b">", b"a.", b"\n", b"")
PATTERNS = [
    b".".join(tokens)
    for length in (1, 2, 3)
    for tokens in product((b"a", b"b", b"*", b">", b"a*"), repeat=length)
    if b">" not in tokens[:-1]
]


class Table:
    """A dictionary and its index, as a subject table has them."""

    def __init__(self) -> None:
        self.live: dict[bytes, int] = {}
        self.index = SubjectIndex(self.live)

    def add(self, names: list[bytes]) -> None:
        known = len(self.live)
        self.live.update(dict.fromkeys(names, 1))
        self.index.add_newest(len(self.live) - known)

    def matching(self, *filters: bytes) -> list[bytes]:
        return sorted(self.index.matching(filters))

    def expected(self, *filters: bytes) -> list[bytes]:
        return sorted(
            name for name in self.live if any(subjects.matches(each, name) for each in filters)
        )


def test_a_compiled_pattern_matches_what_the_pattern_matches() -> None:
    names = [b".".join(tokens) for n in (1, 2, 3) for tokens in product(TOKENS, repeat=n)]
    for pattern in PATTERNS:
        matches = compiled(pattern).fullmatch
        for name in names:
            assert bool(matches(name)) == subjects.matches(pattern, name), (pattern, name)


@pytest.mark.parametrize("run", [4, 64, 8192])
def test_subjects_that_come_and_go_are_found(monkeypatch: pytest.MonkeyPatch, run: int) -> None:
    monkeypatch.setattr(subjectindex, "RUN", run)
    chance, table = random.Random(run), Table()
    for step in range(300):
        table.add([b"%c.%d.%d" % (*chance.choices(b"abcdefgh"), step % 7, n) for n in range(3)])
        for name in chance.sample(list(table.live), len(table.live) // 3):
            del table.live[name]
        for filters in ((b"a.>",), (b"*.3.*",), (b"b.*.1", b"b.>"), (b"a.1.1",), (b"*",), (b">",)):
            assert table.matching(*filters) == table.expected(*filters)


def test_nothing_is_kept_before_somebody_asks() -> None:
    table = Table()
    table.add([b"a.%d" % n for n in range(100)])

    assert table.index.entries == 0
    assert len(table.matching(b"a.*")) == 100
    assert table.index.entries == 100


def test_subjects_are_put_in_order_a_run_at_a_time() -> None:
    table = Table()
    table.add([b"a.%d" % n for n in range(10 * subjectindex.RUN)])

    steps = table.index.order()
    next(steps)
    table.add([b"b.1", b"b.2"])
    assert table.matching(b"b.*") == [b"b.1", b"b.2"]
    assert list(steps) == []

    assert table.matching(b"a.1.>", b"a.7", b"b.2") == [b"a.7", b"b.2"]


def test_an_order_that_is_forgotten_halfway_is_made_anew() -> None:
    table = Table()
    table.add([b"a.%d" % n for n in range(3 * subjectindex.RUN)])
    steps = table.index.order()
    next(steps)
    table.live.clear()
    for step in range(3):
        table.add([b"b.%d.%d" % (step, n) for n in range(subjectindex.RUN)])
        table.live.clear()
    table.add([b"c.1"])

    assert list(steps) == []
    assert table.matching(b"c.*") == [b"c.1"]


def test_subjects_that_come_back_again_and_again_leave_nothing_behind() -> None:
    table = Table()
    table.matching(b"a.*")
    for step in range(40):
        table.add([b"a.%d" % n for n in range(2000)])
        table.live.clear()
        assert table.index.entries <= 2 * len(table.live) + 2 * subjectindex.RUN, step


def test_a_pattern_touches_its_own_subjects_only() -> None:
    few, many = Table(), Table()
    few.add([b"a.%d" % n for n in range(100)])
    many.add([b"a.%d" % n for n in range(100)])
    many.add([b"b.%d" % n for n in range(100_000)])

    def find(table: Table) -> None:
        assert len(table.index.matching((b"a.*",))) == 100

    assert work_of(lambda: find(many)) < work_of(lambda: find(few)) + 1000


def test_subjects_without_wildcards_need_no_order() -> None:
    table = Table()
    table.add([b"a.%d" % n for n in range(100)])

    assert table.matching(b"a.7", b"a.x", b"a.8") == [b"a.7", b"a.8"]
    assert table.index.entries == 0
    assert table.matching(b"a.7", b"a.*").count(b"a.7") == 1


def test_a_lookup_finds_what_exists_though_the_order_is_forgotten_meanwhile() -> None:
    table = Table()
    old = [b"a.%d" % n for n in range(3 * subjectindex.RUN)]
    table.add([*old, b"c.1"])
    portions = table.index.portions((b"c.*",))
    found = next(portions) + next(portions)

    for name in old:
        del table.live[name]
    for step in range(4):
        new = [b"b.%d.%d" % (step, n) for n in range(subjectindex.RUN)]
        table.add(new)
        for name in new:
            del table.live[name]

    assert [b"c.1"] == found + [name for portion in portions for name in portion]
