"""
The Python of README, docs and notebook runs: each page from its first block to its last.

A block in a comment, `<!-- python … -->`, runs too: what a reader of the page has at hand,
such as a stream with messages. 4222 is the port of a server that the page has to itself.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import PENSTOCK, ServerProcess

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parent.parent
CONFIG = "jetstream { store_dir: store }"
BLOCK = re.compile(r"(?:```|<!-- )python\n(.*?)(?:```|-->)", re.DOTALL)
SHOWS_CODE_THAT_IS_NO_PROGRAM = {"style.md"}
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python" in path.read_text(encoding="utf-8")
    and path.name not in SHOWS_CODE_THAT_IS_NO_PROGRAM
]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def run(cells: list[str], directory: Path) -> str:
    """Run cells against a server of their own; return what they print."""
    with ServerProcess(PENSTOCK, CONFIG) as server:
        cells = [cell.replace("4222", str(server.port)) for cell in cells]
        (directory / "cells.json").write_text(json.dumps(cells), encoding="utf-8")
        # PySpark warns of its own ways; the rest is ours.
        warnings = "default" if any("penstock.spark" in cell for cell in cells) else "error"
        ended = subprocess.run(
            [sys.executable, "-W", warnings, ROOT / "tests" / "runcells.py", "cells.json"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")

    shown = run(BLOCK.findall(text), tmp_path)

    for promised in re.findall(r"^ *print\(.*\) +# (.+)$", text, re.MULTILINE):
        assert promised in shown


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    cells = [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]

    assert run(cells, tmp_path)


def test_a_page_links_only_to_what_there_is() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]

    assert [] == missing
