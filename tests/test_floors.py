"""The floors of coverage: what is below one is told, and none of them falls."""

from __future__ import annotations

import json
from pathlib import Path

from tests.floors import SOURCE, below, measured, raised, read_floors, without_tests


def test_a_module_has_a_test_file_of_its_own_under_its_own_path() -> None:
    without = without_tests()

    assert "jetstream/consumers/ledger.py" not in without
    assert all((SOURCE / module).exists() for module in without)


def test_every_floor_is_a_percentage() -> None:
    assert all(0 <= floor <= 100 for floor in read_floors().values())


def test_a_module_may_be_a_little_below_its_floor_and_no_more() -> None:
    floors = {"a.py": 90, "b.py": 90}

    assert [] == below(floors, {"a.py": 88, "b.py": 100})
    assert ["a.py: 87 %, and its floor is 90 %"] == below(floors, {"a.py": 87})
    assert ["c.py: 100 %, and it has no floor"] == below(floors, {"c.py": 100})


def test_floors_rise_and_never_fall() -> None:
    assert {"a.py": 90, "b.py": 95, "c.py": 7} == raised(
        {"a.py": 90, "b.py": 90, "gone.py": 50}, {"a.py": 80, "b.py": 95, "c.py": 7}
    )


def test_a_report_is_read_by_module(tmp_path: Path) -> None:
    report = tmp_path / "coverage.json"
    files = {"src/penstock/core/runs.py": {"summary": {"percent_covered": 97.9}}}
    report.write_text(json.dumps({"files": files}))

    assert {"core/runs.py": 97} == measured(report)
