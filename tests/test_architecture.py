"""
Who may import whom. The tables below are the architecture diagram.

`MAY_IMPORT` has a row for each part of the package, a module or a folder, with the parts
it may use. Imports go down only: a part in a row stands further down as a row of its own.
`INSIDE` does the same for folders within a part. `RINGS` holds the largest group of modules
of a part that import each other in a ring; an import under `TYPE_CHECKING` counts, because a
reader follows it too. A number there may fall, and never rise.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "penstock"
LINES_MAX = 600
FUNCTION_LINES_MAX = 70
ENTRIES_MAX = 18
"""What may lie directly in the package, so that its listing stays a map."""

GROUND = {"errors", "files", "protocol", "keys"}
WIRE = {"hot"} | GROUND

MAY_IMPORT: dict[str, set[str]] = {
    "__main__": {"cli"},
    "__init__": {"client", "net", "bus", "config", "protocol", "errors"},
    "pytest_plugin": {"bus"},
    "cli": {"bench", "spark", "bus", "client", "net", "jetstream", "config"} | WIRE,
    "bench": {"bus", "client", "net", "config"} | WIRE,
    "spark": {"client", "config"} | WIRE,
    "bus": {"client", "net", "config"} | WIRE,
    "net": {"jetstream", "core", "client", "config"} | WIRE,
    "jetstream": {"core", "config"} | WIRE,
    "core": {"config"} | WIRE,
    "client": {"config"} | WIRE,
    "config": GROUND,
    "hot": {"protocol", "errors"},
    "keys": {"protocol", "errors"},
    "protocol": {"errors"},
    "files": set(),
    "errors": set(),
}

INSIDE: dict[str, set[str]] = {
    "jetstream.store.file": {"jetstream.store"},
    "jetstream.store": {"jetstream.store.file"},
    "jetstream.config": {"jetstream.store", "jetstream.store.file"},
    "config": set(),
    "config.file": {"config"},
    "bus.events": set(),
    "bus.config": {"bus.events"},
    "spark.envelopes": set(),
}
"""A folder that is named here uses no other folders of its part than these."""

NEVER = [
    ("jetstream.consumers", "jetstream.api"),
    ("jetstream.intake", "jetstream.api"),
    ("jetstream.copies", "jetstream.api"),
]
"""Neighbours that do not know each other: the first never imports the second."""

RINGS = {"jetstream": 3, "core": 7, "net": 3, "bus": 3}
"""The largest ring of each part; a part that is not named has none."""

SHARED_NAMES_MAX = 29
"""How many class names may stand for two things, such as `Account` and `Connection`. May fall."""

WORLD = {"asyncio", "random", "select", "selectors", "socket", "subprocess", "threading", "time"}
"""Where sockets, threads, time and chance come from."""

SANS_IO = {"core": WORLD, "hot": WORLD - {"socket"}, "jetstream": WORLD - {"threading"}}
"""Parts that are handed their time and their bytes, and what they may not reach for."""

NUMBERED = re.compile(r"\b(publish|operation|answer|batch\[0\]|publishes\[\S*\])\[-?[0-9]\]")
"""An operation whose field is read by its number: `wire` has names for them."""

FILES = sorted(path for path in SOURCE.rglob("*.py"))


def module_of(path: Path) -> str:
    """Return the name of a file's module, without the package's own: `jetstream.store.block`."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def part_of(module: str) -> str:
    """Return the row of the table a module belongs to."""
    return module.split(".")[0]


def folder_of(module: str) -> str:
    """Return the folder a module lies in: `jetstream.store`."""
    is_folder = MODULES[module].name == "__init__.py"
    return module if is_folder else module.rpartition(".")[0]


def names_imported(path: Path) -> Iterator[str]:
    """Yield the full name of everything a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def imports() -> Mapping[str, set[str]]:
    """Return for each module the modules of ours that it imports."""
    found: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        ours = {name.removeprefix("penstock.") for name in names_imported(path) if "." in name}
        used = {name if name in MODULES else name.rpartition(".")[0] for name in ours}
        found[module] = (used & set(MODULES)) - {module}
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_the_table_allows(module: str) -> None:
    part = part_of(module)

    assert {part_of(used) for used in imports()[module]} - {part} <= MAY_IMPORT[part]


def test_the_table_goes_down_only() -> None:
    rows = list(MAY_IMPORT)
    for part, allowed in MAY_IMPORT.items():
        assert all(rows.index(part) < rows.index(other) for other in allowed), part


@pytest.mark.parametrize("folder", INSIDE)
def test_a_folder_uses_only_the_folders_it_may(folder: str) -> None:
    part = part_of(folder)
    used = {
        folder_of(other)
        for module, others in imports().items()
        if folder_of(module) == folder
        for other in others
        if part_of(other) == part
    }

    assert used - {folder} <= INSIDE[folder]


@pytest.mark.parametrize(("folder", "stranger"), NEVER)
def test_neighbours_that_do_not_know_each_other(folder: str, stranger: str) -> None:
    found = [
        f"{module} imports {other}"
        for module, others in imports().items()
        if folder_of(module) == folder
        for other in others
        if folder_of(other) == stranger
    ]

    assert found == []


@pytest.mark.parametrize("part", sorted({part_of(module) for module in MODULES}))
def test_the_rings_of_a_part_only_shrink(part: str) -> None:
    rings = [ring for ring in rings_of(imports()) if part_of(next(iter(ring))) == part]
    largest = max((len(ring) for ring in rings), default=0)

    assert largest == RINGS.get(part, 0), max(rings, key=len, default=set())


def rings_of(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the groups of nodes that reach each other, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    rings: list[set[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            ring = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(ring) > 1:
                rings.append(ring)

    for node in graph:
        if node not in order:
            visit(node)
    return rings


@pytest.mark.parametrize("part", ["core", "hot", "jetstream", "net"])
def test_the_fields_of_an_operation_have_names(part: str) -> None:
    numbered = [
        f"{module}: {found[0]}"
        for module, path in MODULES.items()
        if part_of(module) == part
        for found in NUMBERED.finditer(path.read_text())
    ]

    assert numbered == []


def test_a_ring_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}

    assert sorted(map(sorted, rings_of(graph))) == [["a", "b", "c"], ["d", "e"]]


def test_a_class_name_stands_for_one_thing() -> None:
    names = Counter(
        node.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    shared = sorted(name for name, times in names.items() if times > 1)

    assert len(shared) <= SHARED_NAMES_MAX, shared


def test_the_package_reads_like_a_map() -> None:
    entries = [entry.name for entry in SOURCE.iterdir() if entry.name != "__pycache__"]

    assert len(entries) <= ENTRIES_MAX


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


@pytest.mark.parametrize("module", [module for module in MODULES if part_of(module) in SANS_IO])
def test_what_does_no_io_reaches_for_no_time_chance_or_socket(module: str) -> None:
    used = {name.split(".")[0] for name in names_imported(MODULES[module])}

    assert used & SANS_IO[part_of(module)] == set()


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
