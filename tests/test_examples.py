"""Every example runs, and prints what its first lines say."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9][0-9]_*.py"))


def test_examples_are_numbered_from_one_without_gaps() -> None:
    numbers = [int(path.name[:2]) for path in EXAMPLES]

    assert list(range(1, len(EXAMPLES) + 1)) == numbers


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path: Path, tmp_path: Path) -> None:
    source = path.read_text()
    documentation = ast.get_docstring(ast.parse(source)) or ""
    promised = textwrap.dedent(documentation.partition("Output:\n")[2]).strip()
    # PySpark warns of its own ways; the rest is ours.
    warnings = "default" if "penstock.spark" in source else "error"
    ended = subprocess.run(
        [sys.executable, "-W", warnings, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert (0, promised) == (ended.returncode, ended.stdout.strip()), ended.stderr
