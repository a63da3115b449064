"""
Lines and branches of each module that the unit tests reach, held to a floor that only rises.

    python -m tests.floors coverage.json          # fail where a module is below its floor
    python -m tests.floors coverage.json --raise  # raise the floors to what was measured
    python -m tests.floors --without              # list modules without a test file of their own
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"
FLOORS = Path(__file__).with_name("floors.txt")
TOLERANCE = 2
"""Percent: branches that depend on time are not reached in every run."""


def read_floors() -> dict[str, int]:
    """Return the floor of each module, in percent."""
    lines = FLOORS.read_text().splitlines()
    return {module: int(percent) for percent, module in map(str.split, lines)}


def measured(report: Path) -> dict[str, int]:
    """Return the percentage of each module in a JSON report of `coverage`."""
    files = json.loads(report.read_text())["files"]
    return {
        str((ROOT / name).relative_to(SOURCE)): math.floor(found["summary"]["percent_covered"])
        for name, found in files.items()
    }


def below(floors: dict[str, int], found: dict[str, int]) -> list[str]:
    """Return a line for each module that is below its floor, or has none."""
    complaints = [
        f"{module}: {percent} %, and its floor is {floors[module]} %"
        for module, percent in found.items()
        if module in floors and percent + TOLERANCE < floors[module]
    ]
    new = [f"{module}: {found[module]} %, and it has no floor" for module in found.keys() - floors]
    return sorted(complaints + new)


def raised(floors: dict[str, int], found: dict[str, int]) -> dict[str, int]:
    """Return floors that are as high as what was found, and none of modules that are gone."""
    return {module: max(floors.get(module, 0), found[module]) for module in sorted(found)}


def without_tests() -> list[str]:
    """Return the modules without `tests/unit/<folder>/test_<module>.py`."""
    modules = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
    return [
        str(module)
        for module in modules
        if not module.name.startswith("__")
        and not (ROOT / "tests" / "unit" / module.parent / f"test_{module.name}").exists()
    ]


def main() -> int:
    report, *options = sys.argv[1:]
    if report == "--without":
        print("\n".join(without_tests()))
        return 0
    floors, found = read_floors(), measured(Path(report))
    if options == ["--raise"]:
        lines = [f"{percent:3} {module}\n" for module, percent in raised(floors, found).items()]
        FLOORS.write_text("".join(lines))
        return 0
    complaints = below(floors, found)
    print("\n".join(complaints) or f"{len(found)} modules are at their floors or above")
    if complaints:
        print("hint: test what is missing; `make coverage-raise` gives new modules a floor")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
