"""Every example runs, and prints what its first lines say."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9][0-9]_*.py"))


def test_examples_are_numbered_from_one_without_gaps() -> None:
    numbers = [int(path.name[:2]) for path in EXAMPLES]

    assert list(range(1, len(EXAMPLES) + 1)) == numbers


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path: Path, tmp_path: Path) -> None:
    documentation = ast.get_docstring(ast.parse(path.read_text())) or ""
    promised = textwrap.dedent(documentation.partition("Output:\n")[2]).strip()
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (0, promised) == (ended.returncode, ended.stdout.strip()), ended.stderr
