"""One table of the JetStream API's errors: every code once, and nowhere else."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import penstock
from penstock.errors import ApiError
from penstock.protocol import errorcodes

SOURCE = Path(penstock.__file__).parent
TABLE = [error for error in vars(errorcodes).values() if isinstance(error, ApiError)]
OTHERS = [path for path in SOURCE.rglob("*.py") if path.name != "errorcodes.py"]


def test_every_code_has_one_row() -> None:
    codes = Counter(error.err_code for error in TABLE)

    assert [code for code, count in codes.items() if count > 1] == []


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_code_is_named_and_not_written_as_a_number(path: Path) -> None:
    codes = {error.err_code for error in TABLE}
    numbers = [node.value for node in ast.walk(ast.parse(path.read_text())) if _is_number(node)]

    assert codes.intersection(numbers) == set()


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int
