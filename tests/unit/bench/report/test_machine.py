"""The machine, and what of it went to whom."""

from __future__ import annotations

import os
import platform

import pytest

from penstock.bench.report.machine import Meter, Usage, describe


def test_a_machine_is_described_in_a_line() -> None:
    line = describe()

    assert f"{os.cpu_count()} cores" in line
    assert line.endswith(f"Python {platform.python_version()}")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("busy_s", "server_s", "own_s", "share"),
    [
        (1.0, 0.25, 0.25, 0.25),
        (1.0, 0.5, 0.5, 0.0),
        (0.5, 0.4, 0.3, 0.0),
        (9.0, 0.0, 0.0, 1.0),
    ],
)
def test_the_share_of_others_is_what_neither_we_nor_the_server_took(
    busy_s: float, server_s: float, own_s: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    start, end = Usage(10.0, 5.0, 1.0, 1.0), Usage(11.0, 5 + busy_s, 1 + server_s, 1 + own_s)

    assert end.others_share_since(start) == pytest.approx(share)


def test_a_meter_reads_the_server_before_and_after() -> None:
    readings = iter([1.5, 4.0])

    with Meter(lambda: next(readings)) as meter:
        assert meter.cpu_s == 0.0

    assert meter.cpu_s == 2.5
    assert meter.wall_s > 0
    assert 0.0 <= meter.others_share <= 1.0
