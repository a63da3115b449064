"""The reports of Spark pipelines, of which some make no sense and some are too many."""

from __future__ import annotations

import json
from itertools import count

import pytest

from penstock.net.monitor.pipelines import PIPELINES_MAX, Pipelines, read_report

REPORT = {
    "name": "orders",
    "stream": "S",
    "batch": 1,
    "rows_per_s": 2.5,
    "behind_messages": 0,
    "behind_s": 0,
}


def report(**fields: object) -> bytes:
    return json.dumps(REPORT | fields).encode()


def pipelines() -> Pipelines:
    return Pipelines(count().__next__)


def names(kept: Pipelines, account: str) -> list[str]:
    return [each["name"] for each in kept.view()["pipelines"] if each["account"] == account]


def test_a_report_is_its_fields() -> None:
    assert REPORT == read_report(report(more="left out"))


@pytest.mark.parametrize(
    "payload",
    [
        report(batch=float("nan")),
        report(batch=float("inf")),
        report(behind_s=float("-inf")),
        report(batch=1).replace(b"2.5", b"1e999"),
        report(batch=10**30),
        report(batch=True),
        report(batch="1"),
        report(name=5),
        report(name="x" * 5000),
        b"[]",
        b"[" * 4000,
        b"",
        b"\xff",
    ],
    ids=lambda payload: payload[:60].decode(errors="replace"),
)
def test_what_others_could_not_read_is_no_report(payload: bytes) -> None:
    assert read_report(payload) is None


def test_one_account_pushes_out_nobody_but_itself() -> None:
    kept = pipelines()
    kept.keep("ours", REPORT)
    for number in range(2 * PIPELINES_MAX):
        kept.keep("theirs", REPORT | {"name": f"{number}"})

    assert ["orders"] == names(kept, "ours")
    assert PIPELINES_MAX - 1 == len(names(kept, "theirs"))
    assert str(2 * PIPELINES_MAX - 1) in names(kept, "theirs")


def test_the_pipelines_silent_for_longest_go_first() -> None:
    kept = pipelines()
    for number in range(PIPELINES_MAX):
        kept.keep("a", REPORT | {"name": f"{number}"})
    kept.keep("a", REPORT | {"name": "0"})
    kept.keep("a", REPORT | {"name": "new"})

    assert {"0", "new"} < set(names(kept, "a"))
    assert "1" not in names(kept, "a")
