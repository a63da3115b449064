"""The programs of the README run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run(program: str, tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_program_serves_and_talks_to_itself(tmp_path: Path) -> None:
    assert run(PROGRAMS[0], tmp_path) == "orders.created b'{\"id\": 1}'\n"


def test_the_second_program_handles_what_it_publishes(tmp_path: Path) -> None:
    pytest.importorskip("msgspec")

    assert run(PROGRAMS[1], tmp_path) == "customer-1 ordered\n" * 3


def test_the_third_program_names_what_spark_really_offers() -> None:
    pytest.importorskip("pyspark")
    from penstock.spark import session

    assert "from penstock.spark import session" in PROGRAMS[2]
    assert callable(session)
