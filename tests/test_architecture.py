"""
Who may import whom. This table is the architecture diagram.

A row names a part of the package, a module or a folder, and the parts it may
use. Imports go down only: what stands in a row stands further down as a row of
its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "penstock"
LINES_MAX = 600
FUNCTION_LINES_MAX = 70

GROUND = {"errors", "version", "protocol", "keys"}
WIRE = {"hot"} | GROUND
MAY_IMPORT: dict[str, set[str]] = {
    "__main__": {"cli"},
    "__init__": {"client", "net", "bus", "config", "errors", "version"},
    "pytest_plugin": {"bus"},
    "cli": {"demo", "bench", "spark", "bus", "client", "net", "jetstream", "files", "config"}
    | WIRE,
    "demo": {"bench", "spark", "bus", "errors"},
    "bench": {"bus", "client", "net", "config"} | WIRE,
    "spark": {"client", "config", "files"} | WIRE,
    "bus": {"client", "net", "config"} | WIRE,
    "net": {"jetstream", "core", "client", "files", "config"} | WIRE,
    "jetstream": {"core", "config"} | WIRE,
    "core": {"config"} | WIRE,
    "client": {"config"} | WIRE,
    "config": GROUND,
    "hot": {"protocol", "errors"},
    "keys": {"protocol", "errors"},
    "protocol": {"errors"},
    "files": set(),
    "version": set(),
    "errors": set(),
}

WORLD = {"asyncio", "random", "select", "selectors", "socket", "subprocess", "threading", "time"}
"""Where sockets, threads, time and chance come from."""

SANS_IO = {"core": WORLD, "hot": WORLD - {"socket"}, "jetstream": WORLD - {"threading"}}
"""Parts that are handed their time and their bytes, and what they may not reach for."""

FILES = sorted(path for path in SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    """Return the row of the table a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Yield the full name of everything a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_used_by(path: Path) -> set[str]:
    names = [name.split(".") for name in imports_of(path)]
    return {name[1] for name in names if name[0] == "penstock" and len(name) > 1}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_what_the_table_allows(path: Path) -> None:
    part = part_of(path)

    assert parts_used_by(path) - {part} <= MAY_IMPORT[part]


def test_the_table_goes_down_only() -> None:
    rows = list(MAY_IMPORT)
    for part, allowed in MAY_IMPORT.items():
        assert all(rows.index(part) < rows.index(other) for other in allowed & set(rows)), part


@pytest.mark.parametrize("forbidden", ["net", "core", "jetstream"])
@pytest.mark.parametrize("part", ["client", "spark"])
def test_what_runs_beside_a_server_never_needs_one(part: str, forbidden: str) -> None:
    reachable, todo = set(), [part]
    while todo:
        current = todo.pop()
        if current not in reachable:
            reachable.add(current)
            todo += MAY_IMPORT.get(current, set())

    assert forbidden not in reachable


@pytest.mark.parametrize(
    "path", [path for path in FILES if part_of(path) in SANS_IO], ids=lambda path: path.name
)
def test_what_does_no_io_reaches_for_no_time_chance_or_socket(path: Path) -> None:
    used = {name.split(".")[0] for name in imports_of(path)}

    assert used & SANS_IO[part_of(path)] == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_function_is_short(path: Path) -> None:
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    too_long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1}"
        for node in functions
        if node.end_lineno is not None and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]

    assert too_long == []
